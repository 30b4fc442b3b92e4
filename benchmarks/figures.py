"""The targets, figure by figure, and the making of a row: names and targets stand here and nowhere else.

A ratio is *ours over a baseline*, both measured in turn in the same minutes. A baseline that is much slower than it was
where the targets were set says more about the machine's hour than about us: the row is void then."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.row import Row
from hogwild import host

LENET, MLP, DIGITS = "LeNet", "MLP", "digits"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table that was asked for (a line 'A / B' is two)."""

    name: str
    target: float
    unit: str = "x"
    smaller_is_better: bool = False

    def row(self, runs: Sequence[float], baseline: float | None = None, note: str = "") -> Row:
        return Row(self.name, self.unit, self.target, list(runs), baseline, note, self.smaller_is_better)


OVER_WELL_KNOWN = Figure("LeNet, 2 workers: samples/s over the well-known way", 2.0)
OVER_LIMIT = {
    LENET: Figure("LeNet, 2 workers: samples/s over the limit", 0.98),
    MLP: Figure("MLP 784-128-10, 2 workers (exchange auto): samples/s over the limit", 0.98),
}
OVER_DDP = {
    LENET: Figure("2 workers: samples/s over DDP gloo, LeNet", 1.4),
    MLP: Figure("2 workers: samples/s over DDP gloo, MLP", 4.0),
}
OVER_BARE_LOOP = {
    LENET: Figure("one worker under the supervisor over the bare loop, LeNet", 0.98),
    MLP: Figure("one worker under the supervisor over the bare loop, MLP", 0.98),
    DIGITS: Figure("one worker under the supervisor over the bare loop written as well as we can, digits", 0.9),
}
GUARDS = {
    LENET: Figure("all guards on over guards off, LeNet", 0.985),
    MLP: Figure("all guards on over guards off, MLP", 0.95),
}
TOO_MANY = Figure("`--procs 4` on 2 cores over `--procs 2`", 0.95)
TIME_TO_98 = Figure(
    "time to 98 % MNIST test accuracy, whole command, 2 workers, over the well-known way", 2.0, "x faster"
)
START = Figure(
    "command start to first update, digits, 2 workers, over `import torch` run twice at once",
    2.8,
    smaller_is_better=True,
)
THREADS = Figure("`threads: auto` over the best of a sweep of procs x threads", 0.95)
# Asked for outside of the table.
OVERHEAD = {
    LENET: Figure("all but forward and backward, LeNet", 0.04, "of an update", smaller_is_better=True),
    MLP: Figure("all but forward and backward, MLP", 0.15, "of an update", smaller_is_better=True),
}

ASKED = (
    OVER_WELL_KNOWN, *OVER_LIMIT.values(), *OVER_DDP.values(), *OVER_BARE_LOOP.values(), *GUARDS.values(),
    TOO_MANY, TIME_TO_98, START, THREADS,
)  # fmt: skip


# ---- baselines, and when they are too slow to be compared with -------------------------------------------------------

LIMIT, BARE, DDP, WELL_KNOWN = "the limit", "the bare loop", "DDP gloo", "the well-known way"

# Samples a second of 2 processes (the bare loop: of one), batch 64, measured when the targets were set, on the machine
# below; the lower end where a range was written down.
WHEN_ASKED: Mapping[tuple[str, str], float] = {
    (LIMIT, LENET): 18_000,
    (LIMIT, MLP): 195_000,
    (BARE, LENET): 8_500,
    (BARE, MLP): 95_000,
    (DDP, LENET): 11_700,
    (DDP, MLP): 37_000,
    (WELL_KNOWN, LENET): 8_500,
}
ENOUGH = 0.85
LIKE = "AMD EPYC"  # with two cores to run on, which is where all figures of the table are measured


def is_like_machine() -> bool:
    described = host.describe_host()
    return LIKE in str(described["cpu"]) and float(str(described["usable_cores"])) >= 2


def floor_of(baseline: str, network: str) -> float:
    """The samples a second below which a baseline voids its row on a like machine."""
    return ENOUGH * WHEN_ASKED[baseline, network]


def over(
    figure: Figure,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    baseline: str,
    network: str,
    note: str = "",
    like: bool | None = None,
) -> Row:
    """The row of ours over theirs, run by run, both in samples a second; void where the baseline is below its floor.
    `like`: whether the machine is like the one the floors come from; found out where it is not given."""
    median = statistics.median(theirs)
    words = f"ours {statistics.median(ours):,.0f} samples/s; baseline: {baseline}, samples/s"
    row = figure.row([a / b for a, b in zip(ours, theirs, strict=True)], median, "; ".join(filter(None, [words, note])))
    floor = floor_of(baseline, network)
    if is_like_machine() if like is None else like:
        return row.void(f"{baseline} ran at {median:,.0f} samples/s, below {floor:,.0f}") if median < floor else row
    row.note += "; another machine than the one the baseline's floor comes from"
    return row
