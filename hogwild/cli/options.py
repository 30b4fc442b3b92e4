"""The options of the command line, as typer reads them from annotations."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer


def named_run(given: Any) -> Any:
    """Return the run that a path on the command line means: as it is, or a name in runs/, or `latest`."""
    if isinstance(given, list):
        return [named_run(one) for one in given]
    if given is None or os.path.exists(given):
        return given
    from hogwild.monitoring.run_status import run_named

    return run_named(given) or given


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
        help="Run directory, its name in runs/, latest, or a checkpoint.",
        callback=named_run,
    ),
]
Which = Annotated[
    str | None,
    typer.Option(help="Checkpoint of a RUN; default: best, or latest without evaluations.", metavar="best|latest"),
]
NewRun = Annotated[Path | None, typer.Option(help="Run directory; default: runs/NAME-DATE-TIME.", metavar="DIR")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with data files; default: $HOGWILD_DATA.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]

# ---- chaos ----------------------------------------------------------------------------------------------------------

Kills = Annotated[int, typer.Option(help="Number of faults.", metavar="N")]
Seed = Annotated[
    int | None,
    typer.Option(help="Random seed; the same seed gives the same faults. Default: random, printed.", metavar="S"),
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
