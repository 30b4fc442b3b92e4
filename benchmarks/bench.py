"""The tools of a suite: the amount to measure, and the speed of ours and of each baseline, asked for one at a time so
that a figure can let them take turns. Every speed is kept, for the curves at the end."""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks import commands
from benchmarks.baselines import ddp, limit, well_known
from benchmarks.baselines.limit import Way
from benchmarks.baselines.networks import NETWORKS, Settings, Shared
from benchmarks.figures import LENET, MLP
from hogwild.data import Mnist

OURS, LIMIT, DDP, WELL_KNOWN = "ours", "limit", "ddp", "well-known"
NO_EVALUATION = ("data.val=null",)


@dataclass(frozen=True, slots=True)
class Effort:
    """`runs` of a figure and `few` of an expensive one; the updates that one process of a baseline is measured over and
    the epochs of our jobs take six to nine seconds on two cores. `max_updates` ends our jobs early, `accuracy` is how
    far the race to an accuracy goes."""

    runs: int = 3
    few: int = 3
    epochs: tuple[tuple[str, int], ...] = ((LENET, 2), (MLP, 25))
    updates: tuple[tuple[str, str, int], ...] = (
        (LIMIT, LENET, 900),
        (LIMIT, MLP, 8_000),
        (DDP, LENET, 450),
        (DDP, MLP, 1500),
        (WELL_KNOWN, LENET, 400),
    )
    digits_epochs: int = 300
    max_updates: int | None = None
    max_time_s: float = 6.0
    profile: tuple[tuple[str, str], ...] = ((LENET, "100:300"), (MLP, "300:900"))
    accuracy: float = 0.98
    guard_pairs: int = 16
    guard_updates: tuple[tuple[str, int], ...] = ((LENET, 25), (MLP, 250))


FULL = Effort()
QUICK = Effort(
    runs=1,
    few=1,
    epochs=((LENET, 1), (MLP, 1)),
    updates=tuple((who, network, 40) for who, network, _ in FULL.updates),
    digits_epochs=1,
    max_updates=80,
    max_time_s=0.5,
    profile=((LENET, "5:10"), (MLP, "5:10")),
    accuracy=0.5,
    guard_pairs=1,
    guard_updates=((LENET, 5), (MLP, 5)),
)


@dataclass
class Bench:
    """Measures; `speeds` holds what was found, in samples/s, by (who, network, procs)."""

    effort: Effort = FULL
    speeds: dict[tuple[str, str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    _ways: dict[str, Way] = field(default_factory=dict)

    @cached_property
    def data(self) -> Shared:
        return Shared.of(*Mnist(split="train").tensors)

    @cached_property
    def digits(self) -> well_known.Digits:
        return well_known.Digits.of("train")

    def job(self, *arguments: str) -> tuple[float, dict]:
        """`commands.job`, cut short where the effort says so."""
        return commands.job(*arguments, *self.cut)

    @property
    def cut(self) -> tuple[str, ...]:
        return () if self.effort.max_updates is None else (f"train.max_updates={self.effort.max_updates}",)

    def ours(self, network: str, procs: int, *more: str, epochs: int | None = None) -> float:
        """A job without evaluation, one thread a worker unless `more` says otherwise."""
        found = commands.speed(
            "train", commands.MNIST, "--procs", str(procs), *NETWORKS[network].overrides, *NO_EVALUATION,
            f"train.epochs={epochs or dict(self.effort.epochs)[network]}", "train.threads=1", *more, *self.cut,
        )  # fmt: skip
        return self._keep(OURS, network, procs, found)

    def limit(self, network: str, procs: int) -> float:
        settings = self._settings(LIMIT, network)
        found = limit.samples_per_s(NETWORKS[network], self.data, procs, settings, self.way(network))
        return self._keep(LIMIT, network, procs, found)

    def ddp(self, network: str, procs: int) -> float:
        found = ddp.samples_per_s(NETWORKS[network], self.data, procs, self._settings(DDP, network))
        return self._keep(DDP, network, procs, found)

    def well_known(self, procs: int) -> float:
        found = well_known.samples_per_s(self.digits, procs, self._settings(WELL_KNOWN, LENET))
        return self._keep(WELL_KNOWN, LENET, procs, found)

    def way(self, network: str) -> Way:
        """Return the limit's way to step: the fastest on this machine, found out once."""
        if network not in self._ways:
            self._ways[network] = limit.fastest(NETWORKS[network], self.data, self._settings(LIMIT, network))
        return self._ways[network]

    def seen(self, who: str, network: str, procs: int, measure: Callable[[], float], runs: int) -> list[float]:
        """At least `runs` speeds: those there are, and as many new ones as are missing."""
        kept = self.speeds[who, network, procs]
        while len(kept) < runs:
            measure()
        return kept

    def _settings(self, who: str, network: str) -> Settings:
        updates = next(n for w, on, n in self.effort.updates if (w, on) == (who, network))
        return Settings(updates=updates, warm_up=min(50, updates))

    def _keep(self, who: str, network: str, procs: int, samples_per_s: float) -> float:
        self.speeds[who, network, procs].append(samples_per_s)
        say(f"{who}, {network}, {procs} procs: {samples_per_s:,.0f} samples/s")
        return samples_per_s


def in_turn(runs: int, *ways: Callable[[], float]) -> list[list[float]]:
    """Return the answers of `ways` in each of `runs` rounds. Every second round goes backwards: whoever is always
    second would always find the machine warmer."""
    found: list[list[float]] = [[] for _ in ways]
    for number in range(runs):
        pairs: Sequence[tuple[list[float], Callable[[], float]]] = list(zip(found, ways, strict=True))
        for answers, way in pairs if number % 2 == 0 else reversed(pairs):
            answers.append(way())
    return found


def median(runs: Sequence[float]) -> float:
    return statistics.median(runs)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)
