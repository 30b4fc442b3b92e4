"""Arguments of the command line: as typer reads them from annotations, and as they are split and checked."""

import json
import os
import re
import shlex
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hogwild.errors import ConfigError, UsageError, did_you_mean

if TYPE_CHECKING:
    from hogwild.monitoring.profile_report import Window

COMMANDS = (
    *("train", "check", "plan", "show", "schema", "doctor", "list", "chaos", "search", "init"),
    *("runs", "status", "logs", "attach", "stop", "ask"),
    *("serve", "submit", "ps", "cancel", "pause", "resume", "retry", "delete"),
    *("eval", "predict", "similar", "complete", "recommend", "sample", "report", "export", "explain"),
)

# Commands that take a job file and overrides.
WITH_JOB = ("train", "check", "plan", "show", "chaos", "search", "submit")


def with_command(argv: list[str]) -> list[str]:
    """Return `argv`, with `train` added if there is no command. Raises UsageError for an unknown command."""
    first = argv[0] if argv else ""
    if first in (*COMMANDS, "-h", "--help", "-V", "--version", "--install-completion", "--show-completion"):
        return argv
    if not first or first.startswith("-") or "=" in first or "/" in first or Path(first).suffix or _exists(first):
        return ["train", *argv]
    raise UsageError(
        f"unknown command {first!r}{did_you_mean(first, COMMANDS)} (commands: {', '.join(COMMANDS)}; "
        "a job file ends in .yaml)",
        code="usage/unknown-command",
    )


def _exists(argument: str) -> bool:
    """Return whether the path exists; False for impossible names, such as one of 256 characters."""
    try:
        return Path(argument).exists()
    except (OSError, ValueError):
        return False


def split_arguments(arguments: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """Return the job file, if any, and the overrides, given in any order. Raises UsageError for a second job file."""
    overrides: list[str] = []
    files: list[str] = []
    for argument in arguments or []:
        key = argument.partition("=")[0]
        is_override = "=" in argument and "/" not in key and not _exists(argument)
        (overrides if is_override else files).append(argument)
    if len(files) > 1:
        raise UsageError(
            f"only one job file is allowed, got {' and '.join(files)}; change fields with key=value",
            code="usage/contradiction",
        )
    return (Path(files[0]) if files else None), overrides


def grid_search(options: Iterable[str]) -> str:
    """Return the override that makes a job search the grid of `--sweep KEY=VALUE,VALUE` options, every trial to its
    end. The values are the items of a YAML list, with or without its brackets, and stay as they were written. Raises
    UsageError."""
    from yaml.nodes import SequenceNode

    from hogwild.config.strict_yaml import compose

    space: dict[str, str] = {}
    for option in options:
        path, _, values = option.partition("=")
        items = f"[{values}]"
        try:
            found = compose(items, "--sweep")
        except ConfigError:
            found = None
        if not path or not isinstance(found, SequenceNode) or not found.value:
            words = "must be KEY=VALUE,VALUE,… with values as in a YAML list, such as optimizer.init_args.lr=0.1,0.01"
            raise UsageError(f"--sweep {option}: {words}", code="usage/bad-sweep")
        if path in space:
            words = f"is given twice; write all its values in one, such as {path}=1,2"
            raise UsageError(f"--sweep {path} {words}", code="usage/bad-sweep")
        has_brackets = len(found.value) == 1 and isinstance(found.value[0], SequenceNode)
        space[path] = f"{json.dumps(path)}: {{choice: {values if has_brackets else items}}}"
    return f"search={{space: {{{', '.join(space.values())}}}, sampler: grid, pruner: none, trials: null}}"


def is_job_id(argument: str) -> bool:
    """Return whether an argument can only mean a job of the service: a number, or letters of an id, and no path."""
    number_or_id = r"[0-9]{1,9}|[0-9a-f]{4,12}"
    return re.fullmatch(number_or_id, argument) is not None and not _exists(argument)


def field_for_option(argv: Sequence[str], known: Container[str]) -> UsageError | None:
    """Return the error that tells how to write the options of a command line that are fields of a job, such as `--lr
    0.1`; None if there is none. `known`: the options of the command."""
    from hogwild.config.rules import homes  # needs pydantic, which a command without an error may do without
    from hogwild.config.strict_yaml import dotted

    said, command, rest = [], ["hogwild"], list(argv)
    while rest:
        argument = rest.pop(0)
        option, equals, value = argument.partition("=")
        fields = homes(option.lstrip("-")) if option.startswith("-") and option not in known else []
        if not fields:
            command.append(argument)
            continue
        if not equals:
            is_value = bool(rest) and not rest[0].startswith("--") and "=" not in rest[0]
            value = rest.pop(0) if is_value and not rest[0].endswith((".yaml", ".yml")) else "VALUE"
        paths = [f"{dotted(path)}={shlex.quote(value)}" for path in fields]
        said.append(f"{option} is not an option; write {' or '.join(paths)}")
        command.append(f"{dotted(fields[0])}={value}")
    if not said:
        return None
    words = "; ".join(said)
    return UsageError(f"{words}\nTry: {shlex.join(command)}", code="usage/field-as-option")


def check_choice(option: str, given: str | None, choices: Iterable[str]) -> None:
    """Check the value of an option, if it is given. Raises UsageError."""
    if given is not None and given not in choices:
        raise UsageError(f"{option} {given}: must be {' or '.join(choices)}", code="usage/bad-value")


def profile_window(given: str | None) -> "Window | None":
    """Return the window of --profile A:B. Raises UsageError."""
    if given is None:
        return None
    from hogwild.monitoring.profile_report import LONGEST, Window

    found = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", given)
    if found is None or not 0 < int(found[2]) - int(found[1]) <= LONGEST:
        raise UsageError(
            f"--profile {given}: must be A:B, whole numbers with 0 <= A < B and B - A at most {LONGEST:,}: updates A "
            "to B-1 of each worker, counted from 0, are recorded (for example 100:110)",
            code="usage/bad-value",
        )
    return Window(int(found[1]), int(found[2]))


# ---- options --------------------------------------------------------------------------------------------------------


def named_run(given: Any) -> Any:
    """Return the run that a path on the command line means: as it is, or a name in runs/, `latest`, or the id of a job
    of the service."""
    if isinstance(given, list):
        return [named_run(one) for one in given]
    if given is None or os.path.exists(given):
        return given
    from hogwild.monitoring.run_status import run_named

    if (found := run_named(given)) is not None or not is_job_id(os.fspath(given)):
        return found or given
    from hogwild.service.client import Client

    return Client().run_dir(os.fspath(given))


def run_names() -> list[str]:
    """Return names of runs for the shell's completion; with none that fits it completes paths."""
    from hogwild.monitoring.run_status import LATEST, RUNS

    return [LATEST, *sorted(entry.name for entry in RUNS.iterdir())] if RUNS.is_dir() else []


Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB.yaml] [key=value]...", help="Job file, and fields to change.")
]
Procs = Annotated[
    str | None,
    typer.Option(
        help="Number of workers; 0: train in this process. auto: measure a few settings on the job first (not with "
        "--resume or --dry-run); in a job file, auto means one worker per core.",
        metavar="N|auto",
    ),
]
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="Run directory, its name in runs/, latest, a job of the service, or a checkpoint.",
        callback=named_run,
        autocompletion=run_names,
    ),
]
Which = Annotated[
    str | None,
    typer.Option(help="Checkpoint of a RUN; default: best, or latest without evaluations.", metavar="best|latest"),
]
NewRun = Annotated[Path | None, typer.Option(help="Run directory; default: runs/NAME-DATE-TIME.", metavar="DIR")]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="A search by the sampler grid, in place of the file's search: optimizer.init_args.lr=0.1,0.01 is a trial "
        "for each value, several options for each combination. Values are those of a YAML list, with its brackets "
        "where one value is a list: 'model.init_args.hidden=[[64, 64], [128]]'.",
        metavar="KEY=VALUES",
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with data files; default: $HOGWILD_DATA.", metavar="DIR")]
StateDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the service; default: $HOGWILD_STATE, or ~/.local/state/hogwild.", metavar="DIR"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]

Tag = Annotated[
    list[str] | None, typer.Option(help="Only those with this tag; several: with all of them.", metavar="TAG")
]

# ---- chaos ----------------------------------------------------------------------------------------------------------

Kills = Annotated[int, typer.Option(min=1, help="Number of faults.", metavar="N")]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Random seed; the same gives the same faults. Default: random, printed.", metavar="S"),
]
Every = Annotated[float, typer.Option(help="Mean time between two faults.", metavar="SECONDS")]
Faults = Annotated[
    str | None,
    typer.Option(
        help="Kinds, comma-separated: kill, stop, terminate, interrupt, loader-kill, loader-stop (with data.feed: "
        "stream), supervisor-kill, supervisor-terminate, supervisor-pause. Default: mostly kill; also stop, terminate, "
        "the loader kinds, and in 1 of 10 faults a supervisor kind.",
        metavar="KINDS",
    ),
]
ScheduleOnly = Annotated[bool, typer.Option("--dry-run", help="Print the faults and start nothing.")]
