"""The report of a run under faults: RUN/report/chaos.json, chaos.md, chaos.png, and a few lines for the terminal, with
the verdict last."""

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hogwild.chaos import schedule
from hogwild.chaos.inject import FaultRecord, Hit
from hogwild.chaos.verdict import COUNTED, ENDED_BY_SUPERVISOR, SETTLED, Check, attempts_of
from hogwild.chaos.watch import PREFIX, SUMMARY, events_of, read_json
from hogwild.storage.records import explained, to_json

METRICS = "metrics.jsonl"
GAP = 4  # times the usual interval between two records: records are missing
INSTALL = "pip install 'hogwild[bench]'"


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The outcome of one injected fault. `took_s`: seconds until a worker was ready in that place again, or the job had
    started again; None if nothing had to be replaced or nothing was."""

    hit: Hit
    words: str
    survived: bool
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The whole report. `asked`: the number of faults requested; `notes`: caveats for the reader."""

    job: str
    run_dir: Path
    seed: int
    every_s: float
    asked: int
    record: FaultRecord
    outcomes: Sequence[FaultOutcome]
    checks: Sequence[Check]
    notes: Sequence[str]

    @property
    def summary(self) -> dict[str, Any]:
        return read_json(self.run_dir / SUMMARY)

    @property
    def survived(self) -> int:
        return sum(outcome.survived for outcome in self.outcomes)

    @property
    def lost(self) -> int | None:
        """Batches in no account; None without a summary."""
        leases = self.summary.get("leases")
        return None if leases is None else leases["total"] - sum(leases[name] for name in SETTLED)

    @property
    def holds(self) -> bool:
        broken = any(check.holds is False for check in self.checks)
        return not broken and self.lost == 0 and self.survived == len(self.outcomes)

    @property
    def verdict(self) -> str:
        """The last line of the report."""
        broken = [check.name for check in self.checks if check.holds is False]
        looked_at = [check for check in self.checks if check.holds is not None]
        invariants = f"{', '.join(broken)} BROKEN" if broken else f"all {len(looked_at)} hold"
        lost = "no account of its batches" if self.lost is None else f"{self.lost} batches lost"
        return f"survived {self.survived} of {len(self.outcomes)} faults; {lost}; invariants: {invariants}"

    def as_json(self) -> dict[str, Any]:
        summary = self.summary
        leases = summary.get("leases") or {}
        values = {
            "job": self.job,
            "run_dir": str(self.run_dir),
            "seed": self.seed,
            "every_s": self.every_s,
            "asked": self.asked,
            "injected": len(self.outcomes),
            "survived": self.survived,
            "lost": self.lost,
            "holds": self.holds,
            **{name: summary.get(name) for name in ("state", "reason", "restarts", "loader_deaths")},
            "leases": {name: leases[name] for name in ("total", *COUNTED) if name in leases},
            "faults": [_as_json(outcome) for outcome in self.outcomes],
            "attempts": [asdict(attempt) for attempt in self.record.attempts],
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
        }
        return dict(to_json(values))

    def lines(self) -> Iterator[str]:
        """Return the lines for the terminal."""
        summary = self.summary
        yield from (f"note: {note}" for note in self.notes)
        if summary:
            leases = summary["leases"]
            others = ", ".join(f"{leases[name]} {name}" for name in COUNTED[1:])
            loaders = f", {summary['loader_deaths']} deaths of loaders" if summary.get("loader_deaths") else ""
            restarts = f"{summary['restarts']} restarts of workers{loaders}"
            yield f"{self.job}: {summary['state']}: {summary['reason']}; {restarts}"
            yield f"  batches: {leases['done']} of {leases['total']} done, {others}"
        counts = Counter(hit.fault.kind for hit in self.record.hits)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in schedule.KINDS if counts[kind])
        yield f"  faults: {kinds or 'none'}"
        if took := [outcome.took_s for outcome in self.outcomes if outcome.took_s is not None]:
            yield f"  back after {min(took):.1f} to {max(took):.1f} s"
        for outcome in self.outcomes:
            if not outcome.survived:
                yield f"  NOT SURVIVED: {outcome.hit.fault} at {outcome.hit.since_s:.1f} s: {outcome.words}"
        for check in self.checks:
            if check.holds is not True:
                yield f"  {'BROKEN' if check.holds is False else 'not checked'}: {check.name}: {check.words}"
        yield f"  report: {self.run_dir / 'report' / 'chaos.md'}"
        yield self.verdict

    def markdown(self) -> str:
        lines = [
            f"# {self.job} under faults",
            "",
            f"{time.strftime('%Y-%m-%d %H:%M')}, seed {self.seed}, a fault every {self.every_s:g} s on average, "
            f"{len(self.outcomes)} of {self.asked} injected. **{self.verdict}**",
            "",
            *(f"* {note}" for note in self.notes),
            "",
            "| at, s | fault | pid | outcome |",
            "|---:|---|---:|---|",
        ]
        lines += [f"| {o.hit.since_s:.1f} | {o.hit.fault} | {o.hit.pid} | {_cell(o.words)} |" for o in self.outcomes]
        lines += ["", "| invariant | holds | |", "|---|---|---|"]
        answers = {True: "yes", False: "**no**", None: "not checked"}
        lines += [f"| {check.name} | {answers[check.holds]} | {_cell(check.words)} |" for check in self.checks]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Write chaos.json and chaos.md. Raises RunDirError on failure."""
        folder = self.run_dir / "report"
        with explained(f"cannot write the report to {folder}"):
            folder.mkdir(exist_ok=True)
            (folder / "chaos.json").write_text(json.dumps(self.as_json(), indent=2) + "\n", "utf-8")
            (folder / "chaos.md").write_text(self.markdown(), "utf-8")


def _as_json(outcome: FaultOutcome) -> dict[str, Any]:
    values = asdict(outcome)
    hit = values.pop("hit")
    fault = hit.pop("fault")
    return {"role": schedule.ROLE[fault["kind"]], **fault, **hit, **values}


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("\n", " ")


# ---- outcome of each fault ------------------------------------------------------------------------------------------


def outcomes_of(record: FaultRecord, run_dir: Path) -> list[FaultOutcome]:
    """Return the outcome of every hit, from the run's own records."""
    events = [{**event, "attempt": attempt} for attempt, event in attempts_of([e for _, e in events_of(run_dir)])]
    return [
        _of_supervisor(hit, record, events) if hit.fault.role == schedule.SUPERVISOR else _of_child(hit, events)
        for hit in record.hits
    ]


def _of_child(hit: Hit, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    """Return the outcome for a worker or loader: it continued, it was replaced, or the attempt ended first."""
    role, prefix = hit.fault.role, PREFIX[hit.fault.role]
    this = [event for event in events if event["attempt"] == hit.attempt]
    number = next((e[role] for e in this if e["event"] == f"{prefix}spawn" and e["pid"] == hit.pid), hit.fault.number)
    own = [event for event in this if event.get(role) == number]
    gone = next((e for e in own if e["event"] == f"{prefix}exit" and e.get("pid") == hit.pid), None)
    is_deadly = hit.fault.kind in schedule.DEADLY
    if gone is None:
        return FaultOutcome(hit, "the attempt ended before it was noticed" if is_deadly else "went on", True)
    if not is_deadly and not re.search(ENDED_BY_SUPERVISOR, gone["how"]):  # it died later of another cause
        return FaultOutcome(hit, "went on", True)
    back = next((e for e in own if e["event"] == f"{prefix}ready" and e["incarnation"] > hit.incarnation), None)
    if back is not None:
        took_s = max(0.0, back["time"] - hit.time)
        words = f"{gone['how']}; replaced after {took_s:.1f} s by incarnation {back['incarnation']}"
        return FaultOutcome(hit, words, True, round(took_s, 3))
    later = this[-1]
    is_over = later["event"] == "end" or any(event["attempt"] > hit.attempt for event in events)
    has_failed = later.get("state") == "failed"
    words = "the job failed" if has_failed else "the attempt ended before it was replaced"
    return FaultOutcome(hit, f"{gone['how']}; {words}", is_over and not has_failed)


def _of_supervisor(hit: Hit, record: FaultRecord, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    attempt = record.attempts[hit.attempt - 1]
    if hit.fault.kind == schedule.SUPERVISOR_PAUSE:
        return FaultOutcome(hit, "went on", True)
    if attempt.left:
        listed = "; ".join(f"{pid}: {command}" for pid, command in attempt.left.items())
        return FaultOutcome(hit, f"processes survived it: {listed}", False)
    if not attempt.is_to_be_resumed:
        return FaultOutcome(hit, f"the job had ended before it, status {attempt.status}", attempt.status == 0)
    again = next((e for e in events if e["event"] == "start" and e["attempt"] > hit.attempt), None)
    if again is None:
        return FaultOutcome(hit, "it was not resumed", bool(record.interrupted))
    took_s = again["time"] - hit.time
    gone = f"no process left after {attempt.gone_s:.2f} s"
    return FaultOutcome(hit, f"{gone}; training resumed after {took_s:.1f} s", True, round(took_s, 3))


# ---- picture --------------------------------------------------------------------------------------------------------


def draw(report: ChaosReport) -> str:
    """Draw samples/s over time, with the faults, to RUN/report/chaos.png; return why there is no picture, or ""."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"no plot: matplotlib is not installed ({INSTALL})"
    file = report.run_dir / METRICS
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    records = [line for line in lines if line["kind"] == "train" and line["samples_per_s"] is not None]
    if not records:
        return "no plot: the job wrote no metrics (log.jsonl)"
    began = report.record.attempts[0].began
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*_curve(records, began), color="black", linewidth=0.8)
    for number, kind in enumerate(schedule.KINDS):
        times = [hit.time - began for hit in report.record.hits if hit.fault.kind == kind]
        for at in times:
            axes.axvline(at, color=f"C{number}", linewidth=0.8, alpha=0.6)
        if times:  # an empty line, for the legend
            axes.plot([], [], color=f"C{number}", label=f"{len(times)} {kind}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("samples/s")
    axes.set_title(report.verdict, loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    with explained(f"cannot write the picture to {report.run_dir / 'report'}"):
        figure.savefig(report.run_dir / "report" / "chaos.png", dpi=150)
    return ""


def _curve(records: Sequence[Mapping[str, Any]], began: float) -> tuple[list[float], list[float]]:
    """Return seconds and samples/s. Gaps in the records mean that nothing trained: 0 there."""
    times = [record["time"] - began for record in records]
    usual_s = statistics.median([0.0] + [later - earlier for earlier, later in pairwise(times)])
    seconds, rates = [0.0], [0.0]
    for at, record in zip(times, records, strict=True):
        if at - seconds[-1] > GAP * usual_s:
            seconds, rates = [*seconds, seconds[-1] + usual_s, at - usual_s], [*rates, 0.0, 0.0]
        seconds.append(at)
        rates.append(record["samples_per_s"])
    return seconds, rates
