"""The cost of an exchange of delta in a job: two workers train an MLP of 10 million parameters and flush every 16
updates. Needs the MNIST files (`HOGWILD_DATA`).

Taken from the phases of a window of `--profile`, in both workers at once, so that they compete for the memory as they
do. A flush is booked as `apply`, in the update after which it comes. All updates apply the same otherwise, so what
`apply` takes beyond its median, summed over the window, is what the flushes took; a hiccup of the machine in an apply
counts against us."""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import commands
from benchmarks.bench import NO_EVALUATION, say
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.wrong_tool import SIZES
from hogwild.monitoring.profile_report import PHASES, PhaseRecord

SYNC_EVERY = 16
SHARE = Figure(
    "delta exchange, MLP of 10 M parameters, sync_every 16: share of the update", 0.05, "of an update",
    smaller_is_better=True,
)  # fmt: skip
(SIZE,) = (size for size in SIZES if size.name == "10 M")


def shares(records: Sequence[PhaseRecord]) -> list[float]:
    """Return the exchange's share of each worker's updates, from 0 to 1. Waiting for work is no part of an update."""
    return [share([dict(times) for times in record.timed]) for record in records]


def share(updates: Sequence[dict[str, int]]) -> float:
    applies = [times.get("apply", 0) for times in updates]
    flushes = sum(applies) - len(applies) * statistics.median(applies)
    worked = sum(times.get(phase, 0) for times in updates for phase in PHASES if phase != "wait")
    return flushes / worked


def measured(exchanges: int) -> list[float]:
    """The share in each of two workers, over a window of so many exchanges. Raises CommandFailed."""
    window = exchanges * SYNC_EVERY
    first = SYNC_EVERY  # the first updates make the gradients and the copies
    updates = 2 * (first + 2 * window + 2 * SYNC_EVERY)  # traced, then timed, in both workers
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        commands.job(
            "train", commands.MNIST, "--procs", "2", *SIZE.overrides, *NO_EVALUATION, "train.threads=1",
            "train.exchange=delta", f"train.sync_every={SYNC_EVERY}", "train.epochs=10",
            f"train.max_updates={updates}", "--profile", f"{first}:{first + window}", run_dir=run_dir,
        )  # fmt: skip
        files = sorted((run_dir / "profile").glob("worker-*.phases.json"))
        found = shares([PhaseRecord.from_json(json.loads(file.read_text())) for file in files])
    say(f"exchange of 10 M parameters: {', '.join(f'{one:.2%}' for one in found)} of the updates of each worker")
    return found


def rows(runs: int, exchanges: int) -> list[Row]:
    """`exchanges` in the window of each worker."""
    found = [statistics.fmean(measured(exchanges)) for _ in range(runs)]
    note = f"2 workers on 2 cores, batch 64, one thread each; mean of both over {exchanges} exchanges each"
    return [SHARE.row(found, note=note)]
