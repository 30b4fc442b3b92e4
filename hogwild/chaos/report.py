"""The report of a run under faults: RUN/report/chaos.json, and lines for the terminal, with the verdict last."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hogwild.chaos import schedule
from hogwild.chaos.inject import FaultRecord, Hit
from hogwild.chaos.verdict import COUNTED, ENDED_BY_SUPERVISOR, SETTLED, Check, attempts_of
from hogwild.chaos.watch import PREFIX, SUMMARY, events_of, read_json
from hogwild.storage.records import explained, to_json


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The outcome of one injected fault. `took_s`: seconds until a worker was ready in that place again, or the job had
    started again; None if nothing had to be replaced or nothing was."""

    hit: Hit
    survived: bool
    took_s: float | None = None

    def __str__(self) -> str:
        back = "" if self.took_s is None else f"; back after {self.took_s:.1f} s"
        not_survived = "" if self.survived else "; NOT SURVIVED"
        return f"{self.hit.since_s:8.1f} s  {self.hit.fault} (pid {self.hit.pid}){back}{not_survived}"


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
        yield from (f"  {outcome}" for outcome in self.outcomes if not outcome.survived)
        for check in self.checks:
            if check.holds is not True:
                yield f"  {'BROKEN' if check.holds is False else 'not checked'}: {check.name}: {check.words}"
        yield f"  report: {self.run_dir / 'report' / 'chaos.json'}"
        yield self.verdict

    def write(self) -> None:
        """Write chaos.json. Raises RunDirError on failure."""
        folder = self.run_dir / "report"
        with explained(f"cannot write the report to {folder}"):
            folder.mkdir(exist_ok=True)
            (folder / "chaos.json").write_text(json.dumps(self.as_json(), indent=2) + "\n", "utf-8")


def _as_json(outcome: FaultOutcome) -> dict[str, Any]:
    values = asdict(outcome)
    hit = values.pop("hit")
    fault = hit.pop("fault")
    return {"role": schedule.ROLE[fault["kind"]], **fault, **hit, **values}


def outcomes_of(record: FaultRecord, run_dir: Path) -> list[FaultOutcome]:
    """Return the outcome of every hit, from the run's own records."""
    events = [{**event, "attempt": attempt} for attempt, event in attempts_of([e for _, e in events_of(run_dir)])]
    return [
        _of_supervisor(hit, record, events) if hit.fault.role == schedule.SUPERVISOR else _of_child(hit, events)
        for hit in record.hits
    ]


def _of_child(hit: Hit, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    """Return the outcome for a worker or loader: survived, unless the job failed with nothing ready in its place."""
    role, prefix = hit.fault.role, PREFIX[hit.fault.role]
    this = [event for event in events if event["attempt"] == hit.attempt]
    gone = next((e for e in this if e["event"] == f"{prefix}exit" and e.get("pid") == hit.pid), None)
    if gone is None or not (hit.fault.kind in schedule.DEADLY or re.search(ENDED_BY_SUPERVISOR, gone["how"])):
        return FaultOutcome(hit, True)  # it went on, and perhaps died later of another cause
    ready = (e for e in this if e["event"] == f"{prefix}ready" and e[role] == gone[role])
    back = next((event for event in ready if event["incarnation"] > hit.incarnation), None)
    return FaultOutcome(hit, this[-1].get("state") != "failed") if back is None else _back(hit, back)


def _of_supervisor(hit: Hit, record: FaultRecord, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    attempt = record.attempts[hit.attempt - 1]
    if hit.fault.kind == schedule.SUPERVISOR_PAUSE:
        return FaultOutcome(hit, True)
    if attempt.left or not attempt.is_to_be_resumed:
        return FaultOutcome(hit, not attempt.left and attempt.status == 0)
    again = next((e for e in events if e["event"] == "start" and e["attempt"] > hit.attempt), None)
    return FaultOutcome(hit, bool(record.interrupted)) if again is None else _back(hit, again)


def _back(hit: Hit, event: Mapping[str, Any]) -> FaultOutcome:
    return FaultOutcome(hit, True, round(max(0.0, event["time"] - hit.time), 3))
