"""LeNet on MNIST with transforms in Python for every record, streamed: our job over one process that a DataLoader with
two workers feeds. Needs the MNIST files (`HOGWILD_DATA`). The same data set class (`baselines/transformed.py`), batch
size and rule, two cores for all of it. The figure has the transforms of the well-known example; beside it stands a row
with shifts and noise as well, where reading costs as much as training and two cores are full either way: there the most
that is left to win is what a DataLoader adds of its own.

Ours is a job of two workers and two loaders; its samples a second are counted from its first update, when as many
batches as the ring has slots are read already: one in a thousand of those it trains. Before the figure a short run has
brought code and data into memory. Of the baseline whole epochs count, after a first one that does not, of the better of
one and two threads; both are measured in every round."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import commands
from benchmarks.bench import NO_EVALUATION, in_turn, median, say
from benchmarks.figures import Figure
from benchmarks.row import Row

OVER_LOADER = Figure(
    "stream feed, LeNet on MNIST with per-sample Python transforms, 2 cores: samples/s over a DataLoader with "
    "2 workers feeding one process", 1.3,
)  # fmt: skip
JITTERED = "the same, with shifts and noise as well"
CLASS = "benchmarks.baselines.transformed.Transformed"
LOADERS = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """`records` of the data, in so many measured `epochs`."""

    runs: int = 3
    records: int = 60_000
    epochs: int = 2


FULL, QUICK = Extent(), Extent(1, 640, 1)


def ours(extent: Extent, jitter: bool, procs: int = 2) -> float:
    """Samples per second of a job. Raises CommandFailed."""
    given = f"{{split: train, records: {extent.records}, jitter: {str(jitter).lower()}}}"
    _, summary = commands.job(
        "train", commands.MNIST, "--procs", str(procs), *NO_EVALUATION, "train.threads=1", "data.feed=stream",
        f"data.loaders={LOADERS}", f"data.train.class_path={CLASS}", f"data.train.init_args={given}",
        f"train.epochs={extent.epochs}",
    )  # fmt: skip
    found = float(summary["samples_per_s"])
    say(f"streamed, {procs} workers, {LOADERS} loaders: {found:,.0f} samples/s, idle {summary['idle']:.3f}")
    return found


def theirs(extent: Extent, jitter: bool, threads: int) -> float:
    """Samples per second of one process behind a DataLoader. Raises CommandFailed."""
    asked = ["--threads", str(threads), "--workers", str(LOADERS), *(["--jitter"] if jitter else [])]
    asked += ["--records", str(extent.records), "--epochs", str(extent.epochs)]
    found = float(json.loads(commands.answer("-m", "benchmarks.baselines.loader_fed", *asked))["samples_per_s"])
    say(f"DataLoader, {LOADERS} workers, {threads} threads: {found:,.0f} samples/s")
    return found


def compared(extent: Extent, jitter: bool) -> tuple[list[float], float, str]:
    """(ours over the better of theirs, one per round; theirs, samples/s; what to say of it)."""
    ways: list[Callable[[], float]] = [
        lambda: ours(extent, jitter),
        lambda: theirs(extent, jitter, 1),
        lambda: theirs(extent, jitter, 2),
    ]
    we, *others = in_turn(extent.runs, *ways)
    best = max(others, key=median)
    note = (
        f"2 workers, {LOADERS} loaders: {median(we):,.0f} samples/s; baseline: samples/s with "
        f"{1 + others.index(best)} thread(s), the better of {', '.join(f'{median(one):,.0f}' for one in others)}; "
        "ratio of medians"
    )
    return [mine / median(best) for mine in we], median(best), note


def rows(extent: Extent) -> list[Row]:
    if extent is not QUICK:
        ours(Extent(1, 2000, 1), jitter=False)  # what is read and compiled once
    ratios, baseline, note = compared(extent, jitter=False)
    asked = OVER_LOADER.row(ratios, baseline, note)
    ratios, baseline, note = compared(extent, jitter=True)
    return [asked, Row(JITTERED, "x", None, ratios, baseline, note)]
