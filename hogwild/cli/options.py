"""The options of the command line, as typer reads them from annotations."""

from pathlib import Path
from typing import Annotated

import typer

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB.yaml] [key=value]...", help="A job file; fields to change."),
]
Procs = Annotated[
    str | None,
    typer.Option(
        help="Workers; 0 trains inside this process. auto given here tries a few settings on the job first (not beside "
        "--resume or --dry-run); in a job file it is a rule: one per core.",
        metavar="N|auto",
    ),
]
NewRun = Annotated[Path | None, typer.Option(help="Default: runs/NAME-DATE-TIME.", metavar="DIR")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data files are looked for; default: $HOGWILD_DATA.", metavar="DIR")
]
Json = Annotated[bool, typer.Option("--json", help="Prints the result as one JSON object, the last line.")]

# ---- chaos ----------------------------------------------------------------------------------------------------------

Kills = Annotated[int, typer.Option(help="How many faults.", metavar="N")]
Seed = Annotated[
    int | None, typer.Option(help="The same seed, the same faults; default: drawn, and said.", metavar="S")
]
Every = Annotated[float, typer.Option(help="Mean time between two faults.", metavar="SECONDS")]
Faults = Annotated[
    str | None,
    typer.Option(
        help="Kinds, comma-separated: kill, stop, terminate, interrupt, loader-kill, loader-stop (with data.feed: "
        "stream), supervisor-kill, supervisor-terminate, supervisor-pause. Default: mostly kill; stop, terminate, "
        "those of loaders, and 1 in 10 of the supervisor.",
        metavar="KINDS",
    ),
]
ScheduleOnly = Annotated[bool, typer.Option("--dry-run", help="Prints the faults and starts nothing.")]
