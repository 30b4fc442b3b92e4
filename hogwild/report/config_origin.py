"""Origin of each value in a run's configuration: a default, the job file, or an override.

resolved.yaml is the configuration that ran, job.yaml the file that was given. Loading job.yaml alone, as `train` does,
shows the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hogwild.config.strict_yaml import readings
from hogwild.errors import ConfigError
from hogwild.formatting import flat
from hogwild.report.run_data import Run
from hogwild.storage.run_directory import LIBRARY

DEFAULT, JOB_FILE, OVERRIDE, CALL, UNKNOWN = "default", "job file", "override", "call", "not in the job file"


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One value. `key` has dots, e.g. train.procs; `origin` is one of the five words above."""

    key: str
    value: Any
    origin: str


def plain_values(text: str) -> Mapping[str, Any]:
    """Return a job file's text as nested values, by its own rules (1e-3 is a number). Empty if it is not YAML."""
    try:
        values = next(iter(readings(text, "job"))).values
    except ConfigError:
        return {}
    return values if isinstance(values, Mapping) else {}


def settings(run: Run) -> list[ResolvedSetting]:
    """Return every field of resolved.yaml, in its order. `override` also covers changes by a resume, and the numbers
    that `procs auto` measured."""
    resolved = dict(flat(plain_values(run.resolved_text)))
    if run.env.get("caller") == LIBRARY:  # there is no file: job.yaml equals resolved.yaml
        return [ResolvedSetting(key, value, CALL) for key, value in resolved.items()]
    written = dict(flat(plain_values(run.job_text)))
    meant = _meant(run.job_text)
    return [ResolvedSetting(key, value, _origin(key, value, written, meant)) for key, value in resolved.items()]


def _origin(key: str, value: Any, written: Mapping[str, Any], meant: Mapping[str, Any] | None) -> str:
    asked = written if meant is None else meant
    if key in asked and asked[key] != value:
        return OVERRIDE
    if key in written or any(name.startswith(f"{key}.") for name in written):
        return JOB_FILE
    if meant is None:
        return UNKNOWN
    return DEFAULT if key in meant else OVERRIDE


def _meant(text: str) -> dict[str, Any] | None:
    """Return every field of the job that the file alone describes; None if this version cannot read it."""
    from hogwild.config.load import load_job

    if not text:
        return None
    try:
        return dict(flat(load_job(None, source_text=text).model_dump()))
    except ConfigError:
        return None
