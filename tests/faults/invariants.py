"""The invariants after every fault, in one function: `violations`; `judge` adds it to a campaign's tally.

The general part, true of any job, is `hogwild.chaos.verdict`, which a user's own runs are judged by. What only a test
can know is added here: how often every sample took effect (jobs/counting.py), the processes that carry the job's mark,
the files in its folder for temporary ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hogwild.chaos.inject import Watch
from hogwild.chaos.verdict import Baseline, checks
from tests.faults.tally import Tally
from tests.helpers.jobs import Ended, Job, start

ENDS = {0: ("succeeded", "epochs"), 75: ("stopped", "SIGTERM")}


@dataclass(frozen=True, slots=True)
class Counted:
    """A job that counts effects, `batch` samples in a batch: every sample took effect `least`
    to `most` times, crashes apart. Of a job that made all of its epochs the two are the same."""

    least: int
    most: int
    batch: int

    @classmethod
    def all_of(cls, epochs: int, batch: int) -> "Counted":
        return cls(epochs, epochs, batch)


@dataclass(frozen=True, slots=True)
class Miscount:
    """Batches beyond what the ledger accounts for."""

    lost: int
    duplicated: int


def miscount(effects: Tensor, leases: Mapping[str, int], samples: int, counted: Counted) -> Miscount:
    """DESIGN 1.4: a batch done has 1 effect; in doubt and redone 1 to 2; in doubt and skipped 0 to 1; skipped or
    quarantined 0. A crash may tear the batch in doubt by element, so part of a batch counts as the whole. `effects`
    (samples,) float; `samples`: how many the job says it has trained on, which is what all effects add up to."""
    put_aside = leases["skipped"] + leases["quarantined"]
    surplus = int(effects.sum()) - samples
    missing = _batches((counted.least - effects).clamp(min=0).sum(), counted)
    extra = _batches((effects - counted.most).clamp(min=0).sum(), counted)
    return Miscount(
        lost=max(0, missing - put_aside, _batches(-surplus, counted)),
        duplicated=max(0, extra - leases["redone"], _batches(surplus, counted) - leases["redone"] - put_aside),
    )


def _batches(samples: Tensor | int, counted: Counted) -> int:
    return math.ceil(int(samples) / counted.batch)


def miscount_of(ended: Ended, counted: Counted | None) -> Miscount:
    """Return what a job lost and repeated, after its end; nothing of one that does not count."""
    if counted is None:
        return Miscount(0, 0)
    return miscount(ended.effects(), ended.leases, ended.summary["samples"], counted)


def violations(ended: Ended, before: Baseline, *, status: int = 0, counted: Counted | None = None) -> list[str]:
    """Sentences, none when all is well. `before`: how the machine was before the job; `status`: the exit status that
    the faults should lead to. Raises nothing for what it finds."""
    if ended.status != status:
        return [f"exit status {ended.status} instead of {status}: {ended.stderr[-2000:]}", *_left(ended)]
    seen = checks(ended.run_dir, before, status=ended.status)
    found = [f"{check.name}: {check.words}" for check in seen if check.holds is False] + _left(ended)
    if ended.reason != ENDS[status]:
        found.append(f"it ended as {ended.reason} instead of {ENDS[status]}")
    wrong = miscount_of(ended, counted)
    if wrong.lost or wrong.duplicated:
        found.append(f"{wrong.lost} batches lost, {wrong.duplicated} done twice in silence; the ledger: {ended.leases}")
    return found


def judge(tally: Tally, ended: Ended, before: Baseline, counted: Counted | None, *, status: int = 0) -> None:
    """Add what is wrong with a job that has ended, and what it counted, to the tally."""
    tally.violations += violations(ended, before, status=status, counted=counted)
    if ended.status == status:
        wrong = miscount_of(ended, counted)
        tally.lost += wrong.lost
        tally.duplicated += wrong.duplicated


def begin(folder: Path, run_dir: Path, arguments: Sequence[str], *changes: str, **how: Any) -> Job:
    """The run is begun, or goes on where there is one, with these changes."""
    if (run_dir / "resolved.yaml").exists():
        return start(folder, "train", "--resume", str(run_dir), *changes, run_dir=run_dir, **how)
    return start(folder, "train", *arguments, "--run-dir", str(run_dir), run_dir=run_dir, **how)


def in_doubt(ended: Ended) -> int:
    """Exchanges that a death left in doubt, by the exit events of all attempts."""
    return sum(1 for event in ended.events("exit") if event.get("indeterminate"))


def unaccounted(ended: Ended) -> list[str]:
    """Return the differences between ledger and deaths, in a run whose supervisor was never killed."""
    told = sum(int(event.get("indeterminate", 0)) for event in ended.events("exit"))
    counted = ended.leases["indeterminate"]
    return [] if told == counted else [f"{told} batches in doubt by the exit events, {counted} by the ledger"]


def _left(ended: Ended) -> list[str]:
    return [f"left behind: {thing}" for thing in ended.left_behind]


class Roll(Watch):
    """The members of one attempt of a job: call `look_alive` often."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.run_dir, job.process.pid)
        self.job = job

    def look_alive(self) -> bool:
        """Takes in what was written since the last look; whether the job was still there before."""
        is_over = self.job.process.poll() is not None  # asked first: what it wrote last is there then
        self.look()
        return not is_over
