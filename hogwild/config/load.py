"""Loading a job: default < YAML < `key=value` of the command line, checked strictly, all errors at once. Torch-free.

The schema is in `schema.py`. A value is read with its place (`strict_yaml`) and may be replaced by the command line;
only the result is checked. So an error names the file's line or the command line.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hogwild.config.locate import default_config, list_configs, read_job_file
from hogwild.config.rules import JobFinding, findings, schema_findings, search_findings, searched_metrics
from hogwild.config.schema import Job, Search
from hogwild.config.strict_yaml import Path as KeyPath
from hogwild.config.strict_yaml import SourcePlace, YamlReading, dotted, read
from hogwild.config.strict_yaml import read as read_yaml
from hogwild.config.values import NO_PLACE
from hogwild.errors import ConfigError, Problem
from hogwild.formatting import flat

__all__ = ["Job", "default_config", "job_from_mapping", "list_configs", "load_job"]

COMMAND_LINE = "command line"


def load_job(
    path: Path | None,
    overrides: Sequence[str] = (),
    source_text: str | None = None,
) -> Job:
    """Load the job in `path` (None: the embedded default), or in `source_text` as if it had been read from `path`.

    `overrides` are `key.path=value` as on the command line; a later one wins. Raises ConfigError with every problem
    found, NotFoundError for a missing file.
    """
    if path is None and source_text is None:
        path = default_config("digits")
    source = str(path) if path is not None else "job"
    text = read_job_file(path) if source_text is None and path is not None else source_text or ""
    changes = [_parse_override(override) for override in overrides]
    stem = path.stem if path is not None else "job"
    return _JobDraft.of(read(text, source, is_text), changes, source, stem).check()


def values_of(path: Path, overrides: Sequence[str], source_text: str) -> dict[str, Any]:
    """Return the values that a job file and `overrides` give, without defaults, and without those that are null. For a
    job that `load_job` accepts."""
    draft = _JobDraft.of(read(source_text, str(path), is_text), map(_parse_override, overrides), str(path), path.stem)
    return {section: value for section, value in draft.values.items() if value is not None}


def job_from_mapping(values: Mapping[str, Any], source: str) -> Job:
    """Make a job from plain values, for the library call. `source` begins each error, e.g. `hogwild.train`."""
    return _JobDraft(as_plain(values), source=source).check()


def is_text(path: KeyPath) -> bool:
    """Return whether an unquoted scalar stays text here: `name: 010` is the name 010."""
    if "init_args" in path:
        return False
    return path[-1:] in (("name",), ("class_path",)) or (path[:2] == ("model", "freeze") and path[-1:] != ("until",))


SPACE = ("search", "space")
_Change = tuple[KeyPath, YamlReading]  # one `key.path=value` of the command line


def _parse_override(text: str) -> _Change:
    key, equals, value = text.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(path):
        message = f"{text!r} is not an override; write key.path=value, such as train.epochs=3"
        problem = Problem(COMMAND_LINE, 0, 0, "", message, code="config/bad-override")
        return (), YamlReading(None, problems=[problem])
    if path[:2] == SPACE and len(path) > len(SPACE):  # the rest is one key there, the path of a field
        path = (*SPACE, ".".join(path[len(SPACE) :]))
    try:
        reading = read(value, COMMAND_LINE, is_text, path)
    except ConfigError as error:
        words = [(one, f"{one.message}, in {value!r}") for one in error.problems]
        problems = [Problem(COMMAND_LINE, 0, 0, key, message, one.code) for one, message in words]
        return path, YamlReading(None, problems=problems, broken={path})
    problems = [replace(one, source=COMMAND_LINE, line=0, column=0) for one in reading.problems]
    return path, YamlReading(reading.values, problems=problems, broken=reading.broken)


@dataclass(slots=True)
class _JobDraft(YamlReading):
    """Values to be checked as a job, and their places."""

    source: str = "job"

    @classmethod
    def of(cls, reading: YamlReading, changes: Iterable[_Change], source: str, stem: str) -> "_JobDraft":
        draft = cls(reading.values, reading.keys, reading.places, list(reading.problems), set(reading.broken), source)
        if not isinstance(draft.values, dict):
            kind = "a list" if isinstance(draft.values, list) else f"the single value {draft.values!r}"
            what = "is empty" if draft.values is None else f"must be a map of sections, not {kind}"
            message = f"the job file {what}; it needs at least model.class_path and data.train.class_path"
            place = draft.places.get((), SourcePlace(source, 1, 1))
            draft.problems.append(place.problem((), message, code="config/empty"))
            return draft
        for path, change in changes:
            draft.problems += change.problems
            draft.broken |= change.broken
            if path and path not in change.broken:
                draft._apply(path, change.values)
        if draft.values.get("name") is None:
            # The file's stem as a valid name of a run directory, as the schema requires.
            kept = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in stem[:100])
            draft.values["name"] = kept.strip().lstrip(".-") or "job"
        return draft

    def _apply(self, path: KeyPath, value: Any) -> None:
        section = self.values
        for depth, part in enumerate(path[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
                self.keys[path[:depth]] = self.places[path[:depth]] = SourcePlace(COMMAND_LINE)
            if part == "init_from" and isinstance(section[part], str):  # the short form of a map
                section[part] = {"path": section[part]}
            section = section[part]
            if not isinstance(section, dict):
                return  # a mistake in the file, which is reported as such
        section[path[-1]] = copy.deepcopy(value)
        for table in (self.keys, self.places):
            for below in [below for below in table if below[: len(path)] == path]:
                del table[below]
            table[path] = SourcePlace(COMMAND_LINE)

    def check(self) -> Job:
        """Return the job. Raises ConfigError with all problems, in the order of the file."""
        job, wrong = self._checked()
        if job is not None and job.search is not None and not wrong:
            wrong = list(self._in_space(job, job.search))
        for path, message, at_key, code in wrong:
            if path not in self.broken:
                self.problems.append(self._place(path, at_key).problem(path, message, code))
        if problems := dict.fromkeys(self.problems):
            raise ConfigError(sorted(problems, key=lambda one: (one.line == 0, one.line, one.column)))
        assert job is not None, "no job and no problem"
        return job

    def _checked(self) -> tuple[Job | None, list[JobFinding]]:
        """Return the job, if the schema accepts it, and all that is wrong."""
        job, wrong = None, list(findings(self.values)) if isinstance(self.values, dict) else []
        try:
            job = Job.model_validate(self.values) if isinstance(self.values, dict) else None
        except ValidationError as error:
            unfit = list(schema_findings(error))
            wrong = unfit + [one for one in wrong if one.path not in {bad.path for bad in unfit}]
        return job, wrong

    def _in_space(self, job: Job, search: Search) -> Iterator[JobFinding]:
        """Check the job with each metric of its search, and with each end of a range and each choice, one at a time."""
        yield from self._of_trials(job, search)
        for key, values in search.space.items():
            told = set[str]()
            for below, value in values.tested:
                path, draft = tuple(key.split(".")), self._with((key, value))
                made, wrong = draft._checked()
                if not wrong and _at(draft.values, path) != value:
                    why = NO_PLACE if path[-1].isdigit() else "there is a value above it"
                    wrong = [JobFinding(path, f"{key} is not a field: {why}", code="config/unknown-key")]
                elif not wrong and made is not None:
                    wrong = list(draft._of_trials(made, search))
                for one in wrong:
                    words = one.message if one.path == path else f"{dotted(one.path)}: {one.message}"
                    if words not in told:
                        told.add(words)
                        place = ("search", "space", key)
                        yield JobFinding(place if one.at_key else (*place, *below), words, one.at_key, one.code)

    def _of_trials(self, job: Job, search: Search) -> Iterator[JobFinding]:
        """Check that trials of this job can be compared by each metric of the search."""
        of_metric = [
            one._replace(path=path)
            for path, metric in searched_metrics(job, search)
            for one in self._with(("evaluate.monitor", metric))._checked()[1]
        ]
        yield from of_metric or search_findings(job, search)

    def _with(self, *changes: tuple[str, Any]) -> "_JobDraft":
        """Return a copy without a search and with these values in the fields."""
        draft = _JobDraft(copy.deepcopy(self.values), source=self.source)
        for key, value in (("search", None), *changes):
            draft._apply(tuple(key.split(".")), value)
        return draft

    def _place(self, path: KeyPath, at_key: bool) -> SourcePlace:
        """Return the place of the key or value; for a missing one that of the nearest section above it."""
        if not at_key and path in self.places:
            return self.places[path]
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path) or self.places.get((), SourcePlace(self.source))


def _at(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def as_plain(value: Any) -> Any:
    """Copy the value with tuples as lists, mappings as dicts and numpy's numbers as Python's, as in a file."""
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value.item() if getattr(value, "shape", None) == () else value


DEFAULT, JOB_FILE, OVERRIDE, CALL, UNKNOWN = "default", "job file", "override", "call", "not in the job file"


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One value. `key` has dots, e.g. train.procs; `origin` is one of DEFAULT to UNKNOWN."""

    key: str
    value: Any
    origin: str


def settings(resolved: Mapping[str, Any], text: str) -> list[ResolvedSetting]:
    """Return every field of a resolved job with its origin; `text`: of its job file. `override` covers changes on the
    command line and by a resume, and the numbers that `procs auto` measured."""
    written, meant = flat_values(text), _meant(text)
    return [ResolvedSetting(key, value, _origin(key, value, written, meant)) for key, value in resolved.items()]


def flat_values(text: str) -> Mapping[str, Any]:
    """Return a job file's text as dotted names with values, by its own rules (1e-3 is a number). Empty if it is not
    YAML."""
    try:
        values = read_yaml(text, "job").values
    except ConfigError:
        return {}
    return dict(flat(values)) if isinstance(values, Mapping) else {}


def _origin(key: str, value: Any, written: Mapping[str, Any], meant: Mapping[str, Any] | None) -> str:
    asked = written if meant is None else meant
    if key in asked and asked[key] != value:
        return OVERRIDE
    if key in written or any(name.startswith(f"{key}.") for name in written):
        return JOB_FILE
    if meant is None:
        return UNKNOWN
    return DEFAULT if key in meant else OVERRIDE


def _meant(text: str) -> Mapping[str, Any] | None:
    """Return every field of the job that the file alone describes; None if this version cannot read it."""
    try:
        return dict(flat(load_job(None, source_text=text).model_dump())) if text else None
    except ConfigError:
        return None
