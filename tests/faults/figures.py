"""What the campaigns are, how much of each is asked for, and the figures of the table that follow from it."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from typing import Any

from benchmarks.row import Row
from tests.faults.tally import Tally


@dataclass(frozen=True, slots=True)
class Campaign:
    """`needed` faults in all, `a_seed` in each seed; `first_guess_s`: how long the first seed may take."""

    name: str
    needed: int
    a_seed: int
    first_guess_s: float

    @property
    def module(self) -> str:
        return f"tests.faults.campaigns.{self.name}"

    def replay(self, seed: int) -> str:
        return f"python -m tests.faults.stress {self.name} {seed}"


CAMPAIGNS = (
    Campaign("protocol", 10_000, 1_000, 60.0),
    Campaign("training", 2_000, 100, 300.0),
    Campaign("stopping", 500, 50, 240.0),
    Campaign("parent", 300, 30, 240.0),
    Campaign("terminating", 200, 20, 180.0),
    Campaign("damage", 10_000, 1_000, 120.0),
    Campaign("streaming", 300, 10, 400.0),
    Campaign("ledger", 100_000, 5_000, 60.0),
    Campaign("roles", 2_000, 120, 240.0),
    Campaign("forking", 500, 1, 60.0),
    Campaign("service", 500, 25, 120.0),
    Campaign("lending", 200, 25, 120.0),
)


@dataclass(slots=True)
class Done:
    """One seed: what came of it. `failed_before`: what it said in a call before this one, until it was mended."""

    seed: int
    seconds: float
    date: str
    tally: Tally
    failed_before: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Seeds:
    """All seeds of one campaign so far, in the order they were first used."""

    done: list[Done] = field(default_factory=list)

    @classmethod
    def from_json(cls, kept: Sequence[Mapping[str, Any]]) -> "Seeds":
        return cls([Done(**{**one, "tally": Tally(**one["tally"])}) for one in kept])

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.done]

    @property
    def next_seed(self) -> int:
        """One that failed comes again first: what is wrong may have been mended. Else a new one."""
        failed = [one.seed for one in self.done if not one.tally.is_clean]
        return failed[0] if failed else max((one.seed for one in self.done), default=-1) + 1

    def add(self, seed: int, tally: Tally, seconds: float) -> None:
        now = Done(seed, round(seconds, 1), time.strftime("%Y-%m-%d"), tally)
        for place, before in enumerate(self.done):
            if before.seed == seed:
                assert not before.tally.is_clean, f"seed {seed} was done already"
                now.failed_before = before.failed_before + before.tally.violations
                self.done[place] = now
                return
        self.done.append(now)

    @property
    def clean(self) -> Tally:
        return reduce(add, (one.tally for one in self.done if one.tally.is_clean), Tally())

    @property
    def all(self) -> Tally:
        return reduce(add, (one.tally for one in self.done), Tally())

    @property
    def longest_s(self) -> float:
        return max((one.seconds for one in self.done), default=0.0)


# ---- rows -----------------------------------------------------------------------------------------------------------


def rows(done: Mapping[str, Seeds]) -> list[Row]:
    """Every figure of the table that campaigns measure, met or not; without a run where nothing was done yet."""
    return [row for name, figures in FIGURES.items() for row in figures(done[name])]


def _count(figure: str, unit: str, needed: int, seeds: Seeds) -> Row:
    return Row(figure, unit, float(needed), [float(seeds.clean.injected)], note=_seeds(seeds))


def _none(figure: str, unit: str, seeds: Seeds, counts: Callable[[Tally], int], note: str = "") -> Row:
    """A count that must be 0."""
    runs = [float(counts(seeds.all))] if seeds.done else []
    return Row(figure, unit, 0.0, runs, note=note, smaller_is_better=True)


def _nothing_lost(title: str, faults: str, needed: int, seeds: Seeds, note: str) -> list[Row]:
    """Return how many faults there were, and that no batch was lost or repeated, and nothing hung."""
    return [
        _count(f"{title}: {faults}", "", needed, seeds),
        _none(f"{title}: batches lost", "", seeds, lambda tally: tally.lost, note),
        _none(f"{title}: batches repeated", "", seeds, lambda tally: tally.duplicated),
        _none(f"{title}: hangs", "", seeds, lambda tally: tally.hangs),
        _none(f"{title}: other violations", "", seeds, _violations),
    ]


def _seeds(seeds: Seeds) -> str:
    mended = sum(bool(one.failed_before) for one in seeds.done)
    words = f"{len(seeds.done)} seeds, {sum(one.seconds for one in seeds.done) / 60:.0f} minutes"
    return words + (
        f"; {mended} of them failed at first, and were run again when the cause was mended" if mended else ""
    )


def _violations(tally: Tally) -> int:
    return len(tally.violations) + tally.injected - tally.survived


def _protocol(seeds: Seeds) -> list[Row]:
    per_10_000 = [one.seconds * 10_000 / one.tally.injected for one in seeds.done if one.tally.injected]
    return [
        _count("protocol without torch: kills", "", 10_000, seeds),
        _none("protocol without torch: violations", "", seeds, _violations),
        Row("protocol without torch: time for 10,000 kills", "s", 180.0, per_10_000[:9], smaller_is_better=True),
    ]


def _training(seeds: Seeds) -> list[Row]:
    title = "real training, random SIGKILL"
    return [
        _count(f"{title}: kills", "", 2_000, seeds),
        _none(f"{title}: batches lost", "", seeds, lambda tally: tally.lost),
        _none(f"{title}: batches done twice in silence", "", seeds, lambda tally: tally.duplicated),
        _none(f"{title}: hangs", "", seeds, lambda tally: tally.hangs),
        _none(f"{title}: other violations", "", seeds, _violations),
        *_doubts(title, seeds.all.measured),
    ]


def _doubts(title: str, measured: Mapping[str, Sequence[float]]) -> list[Row]:
    """Per kind of job: kills that left an exchange in doubt, beside the share of the time that can leave one. LeNet's
    direct and auto are one figure, which is the one that is asked for."""
    kinds = sorted({name.partition(":")[0] for name in measured})
    lenets = [kind for kind in kinds if kind.startswith("LeNet")]
    figure = f"{title}, LeNet: kills that leave an exchange in doubt"
    asked = Row(figure, "%", 1.0, _percent(lenets, measured), note=_shares(lenets, measured), smaller_is_better=True)
    others = [
        Row(f"{title}, {kind}: kills that leave an exchange in doubt", "%", None, _percent([kind], measured),
            note=_shares([kind], measured))
        for kind in kinds
    ]  # fmt: skip
    return [asked, *others]


def _percent(kinds: Sequence[str], measured: Mapping[str, Sequence[float]]) -> list[float]:
    kills = sum(sum(measured.get(f"{kind}: kills", [])) for kind in kinds)
    doubts = sum(sum(measured.get(f"{kind}: in doubt", [])) for kind in kinds)
    return [100 * doubts / kills] if kills else []


def _shares(kinds: Sequence[str], measured: Mapping[str, Sequence[float]]) -> str:
    shares = [share for kind in kinds for share in measured.get(f"{kind}: % of an update in apply", [])]
    kills = sum(sum(measured.get(f"{kind}: kills", [])) for kind in kinds)
    words = f"of {kills:.0f} kills"
    return words + (f"; the apply is {min(shares):.2g} to {max(shares):.2g} % of an update" if shares else "")


def _stopping(seeds: Seeds) -> list[Row]:
    ratios = [value for name, values in seeds.all.measured.items() if name.startswith("others") for value in values]
    fenced = seeds.all.measured.get("fenced", [])
    note = f"{sum(fenced):.0f} of {len(fenced)} were fenced, the others went on"
    return [
        _count("SIGSTOP/SIGCONT around the deadline: stops", "", 500, seeds),
        _none("SIGSTOP/SIGCONT around the deadline: double effects", "", seeds, lambda tally: tally.duplicated, note),
        _none("SIGSTOP/SIGCONT around the deadline: other violations", "", seeds, _violations),
        Row("SIGSTOP/SIGCONT around the deadline: speed of the others, over that before the stop", "", 0.95, ratios,
            note="batches a second by their diaries; each run is the median of a job's stops"),
    ]  # fmt: skip


def _parent(seeds: Seeds) -> list[Row]:
    gone = seeds.all.measured.get("seconds until nothing was left", [])
    note = f"the slowest was gone {max(gone):.2f} s after the kill" if gone else ""
    return [
        _count("parent SIGKILL: kills", "", 300, seeds),
        _none("parent SIGKILL: violations (processes or shared memory left after 2 s)", "", seeds, _violations, note),
        _none("parent SIGKILL: batches lost or repeated after the resumes", "", seeds, _miscounted),
    ]


def _terminating(seeds: Seeds) -> list[Row]:
    seconds = seeds.all.measured.get("seconds to the end", [])
    return [
        _count("SIGTERM: signals", "", 200, seeds),
        Row("SIGTERM: the longest way out", "s", 30.0, [max(seconds)] if seconds else [], smaller_is_better=True),
        _none("SIGTERM: batches lost or repeated after the resumes", "", seeds, _miscounted),
        _none("SIGTERM: other violations", "", seeds, _violations),
    ]


def _miscounted(tally: Tally) -> int:
    return tally.lost + tally.duplicated


def _damage(seeds: Seeds) -> list[Row]:
    done = seeds.all
    detected = [100 * done.survived / done.injected] if done.injected else []
    return [
        _count("checkpoint damage: damages", "", 10_000, seeds),
        Row("checkpoint damage: detected, the one before used, and said so", "%", 100.0, detected),
    ]


def _streaming(seeds: Seeds) -> list[Row]:
    title = "streamed jobs, killed, stopped and resumed"
    struck = ("worker", "loader", "SIGTERM", "parent")
    counts = [f"{len(seeds.all.measured.get(what, []))} x {what}" for what in struck]
    return _nothing_lost(title, "jobs", 300, seeds, ", ".join(counts))


def _ledger(seeds: Seeds) -> list[Row]:
    return [
        _count("ledger without processes: runs", "", 100_000, seeds),
        _none("ledger without processes: bad runs", "", seeds, _violations),
    ]


def _roles(seeds: Seeds) -> list[Row]:
    title = "SIGKILL of workers, loaders, readers, spares and a GPU's owner, with resizes"
    measured = seeds.all.measured
    shares = ", ".join(f"{sum(measured[what]):.0f} {what}" for what in sorted(measured))
    return _nothing_lost(title, "kills", 2_000, seeds, shares)


def _forking(seeds: Seeds) -> list[Row]:
    title = "SIGKILL and SIGSTOP of the fork server, of what it forks and of the supervisor at each step of a start"
    measured = seeds.all.measured
    shares = ", ".join(f"{sum(measured[what]):.0f} {what}" for what in sorted(measured))
    return _nothing_lost(title, "faults", 500, seeds, shares)


def _service(seeds: Seeds) -> list[Row]:
    title = "SIGKILL of the service, at random and at its failpoints"
    jobs = f"{sum(seeds.all.measured.get('jobs', [])):.0f} jobs"
    return [
        _count(f"{title}: kills", "", 500, seeds),
        _none(f"{title}: jobs lost", "", seeds, lambda tally: tally.lost, jobs),
        _none(f"{title}: jobs run twice", "", seeds, lambda tally: tally.duplicated),
        _none(f"{title}: hangs", "", seeds, lambda tally: tally.hangs),
        _none(f"{title}: orphans and other violations", "", seeds, _violations),
    ]


def _lending(seeds: Seeds) -> list[Row]:
    title = "resizes through the service, with SIGKILL of workers"
    measured = seeds.all.measured
    shares = ", ".join(f"{sum(measured.get(what, [])):.0f} {what}" for what in ("jobs", "kills", "moves of cores"))
    calm, found = (measured.get(f"accuracy, {kind}", []) for kind in ("calm", "digits"))
    accuracy = Row(f"{title}: accuracy (digits)", "", 0.98, found, note="per seed; baseline: jobs left alone")
    accuracy.baseline = statistics.fmean(calm) if calm else None
    return [
        *_nothing_lost(title, "resizes", 200, seeds, shares),
        accuracy,
    ]


FIGURES: dict[str, Callable[[Seeds], list[Row]]] = {
    "protocol": _protocol,
    "training": _training,
    "stopping": _stopping,
    "parent": _parent,
    "terminating": _terminating,
    "damage": _damage,
    "streaming": _streaming,
    "ledger": _ledger,
    "roles": _roles,
    "forking": _forking,
    "service": _service,
    "lending": _lending,
}
