"""`make stress`: campaigns by seed, until every row of the table has its count.

    python -m tests.faults.stress [--minutes M] [--only NAME ...]    goes on where the last call stopped
    python -m tests.faults.stress NAME SEED                          one seed again, written nowhere

What was injected is added up over calls in benchmarks/results/faults.json; no seed is ever used twice. The next seed is
of the campaign that has the smallest part of what it needs, as far as the time left allows. A violation ends the call
with status 1, is kept in the file with its seed, and its seed counts for nothing."""

import argparse
import importlib
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from benchmarks import results
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


HEAD = ("injected", "survived", "lost", "duplicated", "hangs", "in doubt")
LOST, KEPT, ASKED = "tab:red", "tab:green", "0.85"


def _counts(seeds: Seeds) -> tuple[int, ...]:
    done = seeds.all
    return (done.injected, done.survived, done.lost, done.duplicated, done.hangs, done.indeterminate)


def table(done: Mapping[str, Seeds]) -> str:
    """In Markdown. *In doubt* are exchanges that a death interrupted: counted in the ledger, and redone or skipped by
    policy."""
    lines = [
        "# The fault campaign",
        "",
        "Written by `make stress`; what each campaign does stands at the head of tests/faults/campaigns/NAME.py.",
        "*In doubt*: exchanges that a death interrupted; the ledger counts them, a policy redoes or skips them.",
        "",
        f"| campaign | asked | {' | '.join(HEAD)} | seeds | minutes |",
        f"|---|{'---:|' * (len(HEAD) + 3)}",
    ]
    for campaign in CAMPAIGNS:
        seeds = done[campaign.name]
        counts = " | ".join(f"{count:,}" for count in _counts(seeds))
        minutes = sum(one.seconds for one in seeds.done) / 60
        lines.append(f"| {campaign.name} | {campaign.needed:,} | {counts} | {len(seeds.done)} | {minutes:.1f} |")
    return "\n".join([*lines, *_failures(done)]) + "\n"


def _failures(done: Mapping[str, Seeds]) -> list[str]:
    """Return the failures of now, and those that were."""
    lines = []
    for campaign in CAMPAIGNS:
        for one in done[campaign.name].done:
            for words in one.tally.violations:
                lines.append(f"* **{campaign.name}, seed {one.seed}** (`{campaign.replay(one.seed)}`): {_line(words)}")
            for words in one.failed_before:
                lines.append(f"* {campaign.name}, seed {one.seed}, mended since: {_line(words)}")
    return ["", "## Violations", "", *lines] if lines else []


def _line(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= 300 else f"{flat[:300]}…"


def draw(done: Mapping[str, Seeds], file: Path) -> None:
    """Replaces `file` (PNG): how much of what is asked for was injected, and survived; and faults over the time spent.
    matplotlib is of the extras: only who draws imports it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    bars, curves = figure.subplots(1, 2)
    for place, campaign in enumerate(reversed(CAMPAIGNS)):
        tally, whole = done[campaign.name].all, 100 / campaign.needed
        bars.barh(place, 100, color=ASKED)
        bars.barh(place, whole * tally.injected, color=LOST)
        bars.barh(place, whole * tally.survived, color=KEPT)
        words = f"{tally.survived:,} of {tally.injected:,} survived, {tally.lost + tally.duplicated:,} batches wrong"
        bars.text(2, place, words, va="center", fontsize=8)
    bars.set_yticks(range(len(CAMPAIGNS)), [f"{one.name}\n({one.needed:,})" for one in reversed(CAMPAIGNS)], fontsize=9)
    bars.set_xlabel("% of the faults asked for (gray: still to do; red: not survived)")
    for campaign in CAMPAIGNS:
        minutes, faults = [0.0], [0.0]
        for one in done[campaign.name].done:
            minutes.append(minutes[-1] + one.seconds / 60)
            faults.append(faults[-1] + one.tally.injected)
        if len(minutes) > 1:
            curves.plot(minutes, faults, marker="o", markersize=3, label=campaign.name)
    curves.set_yscale("symlog", linthresh=10)
    curves.set_ylim(bottom=0)
    curves.set_xlabel("minutes spent on the campaign")
    curves.set_ylabel("faults injected")
    curves.grid(alpha=0.3)
    if curves.lines:
        curves.legend(fontsize=8)
    for axes in (bars, curves):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


SUITE = "faults"
MINUTES = 38.0
KEPT_TREES = "hogwild-stress-"


# ---- what was done so far -------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Seeds]:
    """Campaign -> its seeds so far, in the order they were done; from `folder`/faults.json."""
    file = folder / f"{SUITE}.json"
    kept: Mapping[str, Any] = json.loads(file.read_text()).get("campaigns", {}) if file.exists() else {}
    return {campaign.name: Seeds.from_json(kept.get(campaign.name, [])) for campaign in CAMPAIGNS}


def write(done: Mapping[str, Seeds], described: dict[str, Any], folder: Path) -> None:
    """The rows of other suites that share the file stay as they are."""
    as_json = {name: seeds.as_json() for name, seeds in done.items()}
    results.update(SUITE, rows(done), described, folder, {"campaigns": as_json}, is_quiet=True)
    (folder / f"{SUITE}-campaigns.md").write_text(table(done))
    draw(done, folder / f"{SUITE}-campaigns.png")


# ---- one call -------------------------------------------------------------------------------------------------------


def stress(minutes: float, campaigns: Sequence[Campaign], folder: Path = results.FOLDER) -> int:
    """Runs seeds for about so long. Returns the exit status: 1 after a violation."""
    described = results.machine()
    deadline = time.monotonic() + 60 * minutes
    done = read(folder)
    while (campaign := _next(campaigns, done, deadline - time.monotonic())) is not None:
        seeds = done[campaign.name]
        seed = seeds.next_seed
        tally, seconds = run_seed(campaign, seed)
        seeds.add(seed, tally, seconds)
        write(done, described, folder)
        print(f"{campaign.name} {seed}: {_words(tally)}, {seconds:.0f} s", flush=True)
        if not tally.is_clean:
            print(_complaint(campaign, seed, tally), file=sys.stderr)
            return 1
    for campaign in campaigns:
        print(f"{campaign.name}: {done[campaign.name].clean.injected:,} of {campaign.needed:,}")
    return 0


def _next(campaigns: Sequence[Campaign], done: Mapping[str, Seeds], left_s: float) -> Campaign | None:
    """The one that lacks most, of those whose next seed is likely to fit."""
    if left_s <= 0:
        return None
    lacking = [
        (done[campaign.name].clean.injected / campaign.needed, campaign.name, campaign)
        for campaign in campaigns
        if done[campaign.name].clean.injected < campaign.needed
        and _is_there(campaign)
        and (done[campaign.name].longest_s or campaign.first_guess_s) <= left_s
    ]
    return min(lacking)[2] if lacking else None


def _is_there(campaign: Campaign) -> bool:
    return importlib.util.find_spec(campaign.module) is not None


def run_seed(campaign: Campaign, seed: int) -> tuple[Tally, float]:
    """In a folder of its own, which stays where it can be looked at when something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"{KEPT_TREES}{campaign.name}-{seed}-"))
    began = time.monotonic()
    tally: Tally = importlib.import_module(campaign.module).run(seed, campaign.a_seed, folder)
    seconds = time.monotonic() - began
    if tally.is_clean:
        shutil.rmtree(folder)
    else:
        print(f"what it left is in {folder}", file=sys.stderr)
        tally.violations = [words.replace(str(folder), "…") for words in tally.violations]  # they are kept
    return tally, seconds


def _words(tally: Tally) -> str:
    return (
        f"{tally.injected} injected, {tally.survived} survived, {tally.lost} lost, {tally.duplicated} duplicated, "
        f"{tally.hangs} hangs, {tally.indeterminate} in doubt"
    )


def _complaint(campaign: Campaign, seed: int, tally: Tally) -> str:
    lines = "\n".join(f"  {words}" for words in tally.violations)
    return f"{campaign.name}, seed {seed}: {_words(tally)}\n{lines}\nagain: {campaign.replay(seed)}"


def replay(name: str, seed: int) -> int:
    campaign = {campaign.name: campaign for campaign in CAMPAIGNS}[name]
    tally, seconds = run_seed(campaign, seed)
    print(json.dumps(tally.as_json(), indent=2))
    print(f"{_words(tally)}, {seconds:.0f} s" if tally.is_clean else _complaint(campaign, seed, tally))
    return 0 if tally.is_clean else 1


def main(argv: Sequence[str]) -> int:
    names = [campaign.name for campaign in CAMPAIGNS]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.stress", description="the fault campaign, by seed")
    parser.add_argument("name", nargs="?", choices=names, help="run this campaign's SEED again")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for how long, about (default: %(default)g)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    given = parser.parse_args(argv)
    if (given.name is None) != (given.seed is None):
        parser.error("a campaign to run again needs its seed")
    if given.name is not None:
        return replay(given.name, given.seed)
    return stress(given.minutes, [campaign for campaign in CAMPAIGNS if campaign.name in given.only])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
