"""Streamed jobs, of every kind of data and with loaders of unequal speed, whose workers, loaders and parent are killed,
which are stopped and resumed, at random moments; in the end each goes on to its last epoch, often one more than it was
begun with. Every record took effect once per epoch, whatever became of those who read it and trained on it.

    train ── worker, loader: SIGKILL ── SIGTERM or SIGKILL of the parent ── --resume ── … ── --resume, to the end"""

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hogwild.chaos.verdict import Baseline
from tests.faults.invariants import Counted, Roll, begin, judge
from tests.faults.tally import Tally, chance
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import wait_for

NAME = "streaming"
BATCH = 4
SAMPLES = (203, 403)
PACES_S = (0.001, 0.002, 0.004, 0.01)  # of a record, drawn for each loader
TRAINING_S = 2.0  # a strike comes within so long, from when somebody trains
STRIKES = ("worker", "worker", "loader", "loader", "SIGTERM", "SIGTERM", "parent")
KINDS = ("Numbers", "Divided", "Undivided", "Stateful", "DividedStateful", "Placed")
PATIENT = [f"supervise.{limit}_timeout_s={seconds}" for limit, seconds in (("start", 900), ("stall", 900))]


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` jobs."""
    tally = Tally()
    for number in range(count):
        streamed = Streamed.drawn(chance(NAME, seed, number), folder / str(number))
        tally += streamed.judged(seed, number)
    return tally


@dataclass(slots=True)
class Streamed:
    """One job and its attempts."""

    dice: Random
    folder: Path
    kind: str
    samples: int
    epochs: int
    arguments: list[str]
    attempts: int = 0

    @classmethod
    def drawn(cls, dice: Random, folder: Path) -> "Streamed":
        kind, samples, epochs = dice.choice(KINDS), dice.choice(SAMPLES), dice.choice((1, 2))
        loaders = dice.choice((1, 2, 2, 3))
        paces = ", ".join(str(dice.choice(PACES_S)) for _ in range(loaders))
        arguments = [
            str(JOBS / "counting.yaml"),
            f"data.train={{class_path: streaming.{kind}, init_args: {{samples: {samples}, paces: [{paces}]}}}}",
            f"model.init_args.samples={samples}",
            f"train.epochs={epochs}",
            f"train.procs={dice.choice((1, 2, 2, 3))}",
            f"data.loaders={loaders}",
            "data.feed=stream",
            "train.exchange=direct",
            f"checkpoint.every_updates={dice.choice((7, 20))}",
            "checkpoint.every_s=null",
            "supervise.deadlock_timeout_s=120",
            *PATIENT,
        ]
        return cls(dice, folder, kind, samples, epochs, arguments)

    def judged(self, seed: int, number: int) -> Tally:
        tally = Tally(injected=1)
        before = Baseline.now()
        job: Job | None = None
        try:
            job = self.begin()
            for what in self.dice.choices(STRIKES, k=self.dice.choice((1, 2, 3))):
                job = self.strike(what, job, before, tally)
            job = self.finish(job, before, tally)
        except AssertionError as error:
            tally.hangs += 1
            tally.violations.append(str(error))
        finally:
            if job is not None:
                job.destroy()
        words = f"job {number} of seed {seed} ({self.kind}, {' '.join(self.arguments[1:6])})"
        tally.violations = [f"{words}: {found}" for found in tally.violations]
        tally.survived = int(not (tally.violations or tally.lost or tally.duplicated))
        return tally

    def begin(self, *changes: str) -> Job:
        self.attempts += 1
        return begin(self.folder / f"attempt-{self.attempts}", self.folder / "run", self.arguments, *changes)

    def strike(self, what: str, job: Job, before: Baseline, tally: Tally) -> Job:
        """Returns the job that goes on: this one, or its next attempt."""
        after_s, chosen = self.dice.uniform(0, TRAINING_S), self.dice.random()
        with Roll(job) as roll:
            wait_for("somebody who trains", lambda: not roll.look_alive() or roll.is_training)
            until = time.monotonic() + after_s
            wait_for("its moment", lambda: not roll.look_alive() or time.monotonic() >= until)
            has_ended = job.process.poll() is not None
            targets = list(roll.of.get(what, {}).values())
            if targets and not has_ended:
                targets[int(chosen * len(targets))].send(signal.SIGKILL)
        if has_ended:
            return self._go_on(job, before, tally, 0)
        tally.note(what, 1.0)
        if what in ("worker", "loader"):
            return job
        if what == "SIGTERM":
            job.send(signal.SIGTERM)
            return self._go_on(job, before, tally, 75)
        job.process.kill()
        return self._go_on(job, before, tally, -signal.SIGKILL)

    def _go_on(self, job: Job, before: Baseline, tally: Tally, status: int) -> Job:
        """Its end is judged, and another attempt begun; after the end of all epochs perhaps for one more."""
        ended = job.wait()
        if ended.status == -signal.SIGKILL == status:
            tally.violations += [f"left behind: {thing}" for thing in ended.left_behind]
        elif ended.status not in (status, 0):
            tally.violations.append(f"exit status {ended.status} instead of {status}: {ended.stderr[-2000:]}")
        elif ended.status == 0:
            self._judge(job, before, tally)
            self.epochs += 1
        return self.begin(f"train.epochs={self.epochs}")

    def finish(self, job: Job, before: Baseline, tally: Tally) -> Job:
        """To the end, and every other time for one more epoch."""
        self._judge(job, before, tally)
        if tally.violations or self.dice.random() < 0.5:
            return job
        self.epochs += 1
        job = self.begin(f"train.epochs={self.epochs}")
        self._judge(job, before, tally)
        return job

    def _judge(self, job: Job, before: Baseline, tally: Tally) -> None:
        """At the end of all epochs."""
        ended = job.wait()
        judge(tally, ended, before, Counted.all_of(self.epochs, BATCH))
        tally.indeterminate += ended.leases["indeterminate"] if ended.status == 0 else 0
