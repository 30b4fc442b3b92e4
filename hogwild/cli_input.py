"""What the command line was given: a command, a job file, overrides, a run to go on with, a data folder."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.errors import NotFoundError, UsageError
from hogwild.rundir import LIBRARY, MEASURED, PLACES

if TYPE_CHECKING:
    from hogwild.config import Job
    from hogwild.traces import Window

COMMANDS = (
    "train",
    "check",
    "plan",
    "show",
    "schema",
    "doctor",
    "list",
    "chaos",
    "init",
    "eval",
    "predict",
    "most-similar",
    "recommend",
    "sample",
    "report",
    "export",
    "completion",
)


def with_command(argv: list[str]) -> list[str]:
    """`argv` with `train` put in where no command was given. Raises UsageError for an unknown command."""
    first = argv[0] if argv else ""
    if first in (*COMMANDS, "-h", "--help"):
        return argv
    if not first or first.startswith("-") or "=" in first or "/" in first or Path(first).suffix or _exists(first):
        return ["train", *argv]
    from difflib import get_close_matches

    close = get_close_matches(first, COMMANDS, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise UsageError(
        f"unknown command {first!r}{hint} (commands: {', '.join(COMMANDS)}; a job file ends in .yaml)",
        code="usage/unknown-command",
    )


def _exists(argument: str) -> bool:
    """False also for what no file can be called: a name of 256 characters is an error of the file system's."""
    try:
        return Path(argument).exists()
    except (OSError, ValueError):
        return False


def split_arguments(arguments: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """The job file, if any, and the overrides, in any order. Raises UsageError for a second job file."""
    overrides: list[str] = []
    files: list[str] = []
    for argument in arguments or []:
        key = argument.partition("=")[0]
        is_override = "=" in argument and "/" not in key and not _exists(argument)
        (overrides if is_override else files).append(argument)
    if len(files) > 1:
        raise UsageError(
            f"one job file at a time, got {' and '.join(files)}; a field is changed with key=value",
            code="usage/contradiction",
        )
    return (Path(files[0]) if files else None), overrides


def load(
    job_file: Path | None, overrides: Sequence[str], flags: Mapping[str, object] | None = None
) -> tuple["Job", str]:
    """The job and its file's text; without a file the embedded default."""
    from hogwild.config import load_job
    from hogwild.config_places import default_config, read_job_file

    path = job_file or default_config("digits")
    text = read_job_file(path)
    return load_job(path, overrides, flags, source_text=text), text


def resumed(run: Path, overrides: Sequence[str], flags: Mapping[str, object]) -> tuple["Job", Path | None, str]:
    """The job as it was resolved, with today's changes on top; the file it came from, for the user's own
    modules. Raises UsageError for a run of the library's: its job file names classes, not the objects that were
    trained."""
    from hogwild.config_places import read_job_file

    if not run.is_dir():
        raise NotFoundError(f"run {run}: there is no such folder (looked for {run.absolute()})", code="run/not-found")
    resolved = run / "resolved.yaml"
    if not resolved.is_file():
        raise NotFoundError(
            f"run {run}: is no run, it has no resolved.yaml (looked for {resolved.absolute()})", code="run/not-a-run"
        )
    if _environment(run).get("caller") == LIBRARY:
        raise UsageError(
            f"run {run} was made by a call of {LIBRARY}, with objects that no file can build again: class paths are "
            f"recorded, their arguments are not. Go on by the same call, with resume={str(run)!r} and the same objects",
            code="usage/library-run",
        )
    if any(line.startswith(MEASURED) for line in read_job_file(resolved).splitlines()) and any(
        change.partition("=")[0] in [f"train.{name}" for name in PLACES] for change in overrides
    ):
        overrides = ["train.exchange=auto", *overrides]  # what was measured there says nothing of here
    job, _ = load(resolved, overrides, flags)
    as_written = run / "job.yaml"
    return job, _users_file(run), read_job_file(as_written if as_written.is_file() else resolved)


def refuse_beside_resume(job_file: Path | None, run_dir: Path | None) -> None:
    """Raises UsageError for what would say a second time which job it is, or where."""
    for value, what in ((job_file, "a job file"), (run_dir, "--run-dir")):
        if value is not None:
            raise UsageError(
                f"--resume takes job and folder from the run; {what} ({value}) beside it contradicts that; "
                "fields are changed with key=value",
                code="usage/contradiction",
            )


def profile_window(given: str | None) -> "Window | None":
    """What --profile A:B asks for. Raises UsageError."""
    if given is None:
        return None
    from hogwild.traces import LONGEST, Window

    found = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", given)
    if found is None or not 0 < int(found[2]) - int(found[1]) <= LONGEST:
        raise UsageError(
            f"--profile {given}: must be A:B, whole numbers with 0 <= A < B and B - A at most {LONGEST:,}: updates A "
            "to B-1 of each worker, counted from 0, are recorded (for example 100:110)",
            code="usage/bad-value",
        )
    return Window(int(found[1]), int(found[2]))


def data_folder(given: Path | None, resume: Path | None) -> Path | None:
    """--data-dir, or what the resumed run recorded, or HOGWILD_DATA; absolute."""
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


def _users_file(run: Path) -> Path | None:
    """A path in the folder where the run looked for user code first; today's current folder may be
    another."""
    folders = _environment(run).get("user_folders")
    return Path(folders[0]) / "job.yaml" if folders else None


def _environment(run: Path) -> dict[str, Any]:
    """RUN/env.json; empty where there is none. Raises NotFoundError for one that cannot be read."""
    env = run / "env.json"
    try:
        return dict(json.loads(env.read_text("utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise NotFoundError(
            f"{env}: cannot be read ({error}); it names the run's data folder: mend or remove it", code="run/not-a-run"
        ) from error
