"""One run of the counting job that is ended from outside and begun again, over and over, and then left alone: at its
end every sample has taken effect as often as there are epochs, no more, no less."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hogwild import host
from hogwild.chaos.verdict import Baseline
from tests.faults.invariants import Counted, Roll, begin, judge
from tests.faults.tally import Moment, Tally, moments
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import wait_for

A_RUN = 10  # ends
START_S, LIFE_S = 4.0, 3.0  # from the start; from the first commit
BATCH = 4
SAMPLES = 4_000
EPOCHS = 6
# Slow enough that a run of many attempts is not at its end before the faults are; `hurry` ends that.
PACE_S = 0.02

Strike = Callable[[Job, Moment, Baseline, Tally], None]
"""Ends the job at that moment and judges how it ended."""


def again_and_again(name: str, seed: int, count: int, folder: Path, strike: Strike) -> Tally:
    """`count` ends, A_RUN of them in each run."""
    tally = Tally()
    when = moments(name, seed, count, start_s=START_S, life_s=LIFE_S)
    for number, first in enumerate(range(0, count, A_RUN)):
        tally += _one_run(when[first : first + A_RUN], folder / str(number), strike)
    return tally


def _one_run(when: Sequence[Moment], folder: Path, strike: Strike) -> Tally:
    tally = Tally()
    diary, run_dir = folder / "diary", folder / "run"
    diary.mkdir(parents=True)
    before = Baseline.now()
    job: Job | None = None
    try:
        for number, moment in enumerate(when):
            job = begin(folder / f"attempt-{number}", run_dir, _arguments(diary))
            strike(job, moment, before, tally)
        (diary / "hurry").touch()
        job = begin(folder / "last", run_dir, _arguments(diary))
        ended = job.wait()
        judge(tally, ended, before, Counted.all_of(EPOCHS, BATCH))
        if ended.status == 0 and not bool((ended.effects() == EPOCHS).all()):
            tally.violations.append(f"effects are not all {EPOCHS}: {sorted(set(ended.effects().tolist()))}")
    except AssertionError as error:
        tally.hangs += 1
        tally.violations.append(str(error))
    finally:
        if job is not None:
            job.destroy()
    return tally


def _arguments(diary: Path) -> list[str]:
    return [
        str(JOBS / "counting.yaml"),
        *[f"{place}.init_args.samples={SAMPLES}" for place in ("model", "data.train")],
        f"data.val={{class_path: counting.Numbers, init_args: {{samples: {SAMPLES}}}}}",
        f"model.init_args.diary={diary}",
        f"model.init_args.pace_s={PACE_S}",
        f"model.init_args.evaluation_pace_s={PACE_S}",
        "model.init_args.ballast=100000",
        f"train.epochs={EPOCHS}",
        "checkpoint.every_s=0.5",
    ]


def send_at(job: Job, moment: Moment, number: int) -> float | None:
    """Sends the signal at the moment; returns when, or None when the job had ended by itself."""
    began = time.monotonic()
    if not moment.while_starting:
        with Roll(job) as roll:
            wait_for("somebody who trains", lambda: not roll.look_alive() or roll.is_training)
        began = time.monotonic()
    pidfd = host.pidfd_open(job.process.pid)
    try:
        host.wait_readable([pidfd], 1000 * max(0.0, began + moment.after_s - time.monotonic()))
        if job.process.poll() is not None:
            return None
        signal.pidfd_send_signal(pidfd, number)
        return time.monotonic()
    finally:
        os.close(pidfd)


def ended_by_itself(job: Job) -> str:
    return f"it ended by itself, with {job.process.returncode}: {job.stderr()[-2000:]}"
