"""The job of a run directory: the configuration it was started with, its data folder, its checkpoints."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.config.locate import default_config, read_job_file
from hogwild.errors import HogwildError, NotFoundError, UsageError
from hogwild.storage.run_directory import LIBRARY, RESOLVED, SEARCH
from hogwild.user_code import look_for_data_in

if TYPE_CHECKING:
    from hogwild.config.load import Job

CHOICES = ("best", "latest")


def checkpoint_of(source: Path, which: str | None) -> Path:
    """Return the folder of the checkpoint, with links resolved. Raises NotFoundError, UsageError."""
    from hogwild.storage.checkpoint_format import MANIFEST

    if not source.is_dir():
        raise NotFoundError(f"{source}: there is no such folder (looked for {source.absolute()})", code="run/not-found")
    if (source / MANIFEST).exists():
        if which is not None:
            raise UsageError(
                f"--which {which}: {source} is already a checkpoint; --which needs a run", code="usage/contradiction"
            )
        return source.resolve()
    _require_no_search(source)
    folder = source / "checkpoints"
    names = CHOICES if which is None else (which,)
    for name in names:
        if (folder / name).exists():
            return (folder / name).resolve()
    raise NotFoundError(_nothing_there(source, folder, which), code="export/no-checkpoint")


def _require_no_search(run: Path) -> None:
    """Raise NotFoundError for the folder of a search, which has no model of its own."""
    if (run / SEARCH).is_file():
        words = f"its runs are its trials, {run / 'trials'}/NUMBER; see hogwild search show {run}"
        raise NotFoundError(f"run {run}: is a search; {words}", code="run/not-a-run")


def _nothing_there(source: Path, folder: Path, which: str | None) -> str:
    if not folder.is_dir():
        return f"{source}: neither a run (no folder checkpoints/) nor a checkpoint (no manifest.json)"
    from hogwild.storage.checkpoint_format import NAME

    there = sorted(entry.name for entry in folder.iterdir() if NAME.fullmatch(entry.name))
    listed = f"it has {', '.join(there)}; use --which latest for the last"
    return f"{folder}: there is no {which or 'latest'} checkpoint: {listed if there else 'the job ended before it'}"


def load(job_file: Path | None, overrides: Sequence[str]) -> tuple["Job", str]:
    """Load the job and its file's text; without a file the embedded default."""
    from hogwild.config.load import load_job

    path = job_file or default_config("digits")
    text = read_job_file(path)
    return load_job(path, overrides, source_text=text), text


def require_run(run: Path) -> Path:
    """Return the path of a run's resolved.yaml. Raises NotFoundError for a folder that is missing or no run."""
    if not run.is_dir():
        raise NotFoundError(f"run {run}: there is no such folder (looked for {run.absolute()})", code="run/not-found")
    resolved = run / RESOLVED
    _require_no_search(run)
    if not resolved.is_file():
        raise NotFoundError(
            f"run {run}: not a run: it has no {RESOLVED} (looked for {resolved.absolute()})", code="run/not-a-run"
        )
    return resolved


def resumed(run: Path, overrides: Sequence[str] = ()) -> tuple["Job", Path | None, str]:
    """Return the job as it was resolved, with the present overrides; and the file it came from, for the user's own
    modules. Raises UsageError for a run of the library's: its job file names classes, not the objects that were
    trained."""
    if is_of_library(run):
        raise UsageError(
            f"run {run} was made by a call of {LIBRARY} with objects that cannot be rebuilt from its files: their "
            f"arguments are not recorded. Resume by the same call with resume={str(run)!r} and the same objects",
            code="usage/library-run",
        )
    return recorded(run, overrides)


def is_of_library(run: Path) -> bool:
    """Return whether a call of the library made the run. Raises NotFoundError."""
    require_run(run)
    return _environment(run).get("caller") == LIBRARY


def recorded(run: Path, overrides: Sequence[str] = ()) -> tuple["Job", Path | None, str]:
    """As `resumed`, also for a run of the library's, whose classes have no arguments."""
    resolved, environment = require_run(run), _environment(run)
    job, _ = load(resolved, overrides)
    as_written = run / "job.yaml"
    # A path in the folder where the run first looked for user code; the current folder may be another.
    folders = environment.get("user_folders")
    users_file = Path(environment.get("job_file") or Path(folders[0]) / "job.yaml") if folders else None
    return job, users_file, read_job_file(as_written if as_written.is_file() else resolved)


@contextlib.contextmanager
def looking_where(run: Path) -> Iterator[None]:
    """Find data files where the run found them, wherever this process was started, such as the folder in which a job of
    the service was submitted; those that lie there no more, in the current folder. Raises NotFoundError."""
    folders = _environment(run).get("data_folders")  # not in runs of earlier versions
    before = look_for_data_in(*map(str, folders)) if isinstance(folders, list) else None
    try:
        yield
    finally:
        if before is not None:
            look_for_data_in(*map(str, before))


def new_run_command(run: Path, job: "Job") -> str:
    """Return the command that starts `job`, a changed job of `run`, as a new run from the run's newest weights; "" for
    a run of the library. It names the user's own job file, and its folder, where user code and data were found."""
    from hogwild.config.load import load_job
    from hogwild.config.strict_yaml import flow

    environment = _environment(run)
    if environment.get("caller") == LIBRARY:
        return ""
    given = environment.get("job_file", run / "job.yaml")
    path = default_config("digits") if given is None else Path(given)
    try:
        written = load_job(path)
    except HogwildError:  # moved, changed, or a pipe
        path = run / RESOLVED
        written = load_job(path)
    values = job.model_dump()
    newest = run.absolute() / "checkpoints" / "latest"
    values["model"]["init_from"] = str(newest) if newest.exists() else None
    changes = [f"{field}={flow(value)}" for field, value in _overrides(written.model_dump(), values)]
    data = environment.get("data_dir")
    options = ["--data-dir", data] if data and data != os.environ.get("HOGWILD_DATA") else []
    folder = (environment.get("user_folders") or [str(Path.cwd())])[-1]
    there = [] if Path(folder) == Path.cwd() else ["cd", folder, "&&"]
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    words = ["hogwild", "train", *([] if given is None else [str(shown)]), *changes, *options]
    return " ".join([*there[:1], *map(shlex.quote, there[1:2]), *there[2:], shlex.join(words)])


def _overrides(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields to set in `old` to get `new`; a map with other keys is set as a whole."""
    for key, value in new.items():
        before = old[key]
        if isinstance(value, Mapping) and isinstance(before, Mapping) and value.keys() == before.keys():
            yield from _overrides(before, value, f"{prefix}{key}.")
        elif value != before:
            yield f"{prefix}{key}", value


def data_folder(given: Path | None, resume: Path | None) -> Path | None:
    """Return --data-dir, or the folder that the resumed run recorded, or HOGWILD_DATA; absolute."""
    if given is not None:
        if not given.is_dir():
            raise NotFoundError(
                f"--data-dir {given}: there is no such folder (looked for {given.absolute()})",
                code="data/folder-not-found",
            )
        return given.absolute()
    recorded = _environment(resume).get("data_dir") if resume is not None else None
    folder = recorded or os.environ.get("HOGWILD_DATA")
    return Path(folder).absolute() if folder else None


def _environment(run: Path) -> dict[str, Any]:
    """Read RUN/env.json; empty if there is none. Raises NotFoundError if it cannot be read."""
    env = run / "env.json"
    try:
        return dict(json.loads(env.read_text("utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise NotFoundError(
            f"{env}: cannot be read ({error}); it names the run's data folder: repair or remove it",
            code="run/not-a-run",
        ) from error
