"""The fork server, a process that it forks, or the supervisor is killed or stopped at a named step of a start
(`fork_points.py`), while a job's first processes start or a killed worker is replaced. The job comes to its end, after
a resume if its supervisor was killed: every sample took effect once per epoch, and no process is left."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hogwild.chaos.verdict import Baseline
from tests.faults.campaigns.protocol import command
from tests.faults.fork_points import SUPERVISOR, Fault, with_fault
from tests.faults.invariants import Counted, in_doubt, miscount_of, violations
from tests.faults.roll import Roll
from tests.faults.schedule import chance
from tests.faults.tally import Tally
from tests.helpers.jobs import JOBS, RUN_PY, Ended, Job, start
from tests.helpers.processes import wait_for

NAME = "forking"
SAMPLES, BATCH, EPOCHS = 400, 4, 2
PACE_S = 0.3
LATER = 3  # launches of a job beside the two that were recorded: readers, and replacements
STOPPED_S = 30.0  # a process that was stopped in its start is replaced after that; a busy machine may import that long


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` jobs with a fault each."""
    tally = Tally()
    for number in range(count):
        fault = drawn(seed, number)
        found = struck(fault, folder / str(number))
        found.violations = [f"seed {seed}, {fault}: {words}" for words in found.violations]
        tally += found
    return tally


def drawn(seed: int, number: int) -> Fault:
    dice = chance(NAME, seed, number)
    fault = dice.choice(every_fault())
    return replace(fault, launch=fault.launch + dice.randrange(LATER)) if fault.launch > 1 else fault


@cache
def every_fault() -> Sequence[Fault]:
    """Return all of a start, of this code; some interleavings have others."""
    with TemporaryDirectory() as folder:
        listed = command(Path(folder), "tests.faults.fork_points", "--list")
    return [Fault(**one) for one in listed]  # type: ignore[arg-type]


def struck(fault: Fault, folder: Path) -> Tally:
    tally, before, diary = Tally(), Baseline.now(), folder / "diary"
    diary.mkdir(parents=True)
    run_dir, mark = folder / "run", folder / "struck"
    job = start(folder, *_arguments(diary, run_dir), run_dir=run_dir, python=with_fault(fault, mark, RUN_PY))
    try:
        _kill_a_worker(job)
        (diary / "hurry").touch()
        ended = job.wait()
        if was_killed := (ended.status == -signal.SIGKILL and fault.victim == SUPERVISOR):
            tally.violations += [f"left by the supervisor: {words}" for words in ended.left_behind]
            job = start(folder / "again", *_again(diary, run_dir), run_dir=run_dir)
            ended = job.wait()
        _judge(ended, before, tally, was_killed)
    except AssertionError as error:
        tally.hangs += 1
        tally.violations.append(str(error))
    finally:
        job.destroy()
    tally.injected = int(mark.exists())
    tally.survived = int(tally.injected and not (tally.violations or tally.lost or tally.duplicated))
    tally.note(f"{fault.signal} of the {fault.victim}", tally.injected)
    return tally


def _kill_a_worker(job: Job) -> None:
    """Once one trains, so that another process is started."""
    with Roll(job) as roll:
        wait_for("a worker that trains", lambda: not roll.look_alive() or roll.is_training)
        if roll.is_training:
            roll.training()[0].send(signal.SIGKILL)


def _judge(ended: Ended, before: Baseline, tally: Tally, was_killed: bool) -> None:
    counted = Counted.all_of(EPOCHS, BATCH)
    tally.violations += violations(ended, before, counted=counted)
    if ended.status == 0:
        wrong = miscount_of(ended, counted)
        tally.lost, tally.duplicated = wrong.lost, wrong.duplicated
        tally.indeterminate = 0 if was_killed else in_doubt(ended)


def _arguments(diary: Path, run_dir: Path) -> list[str]:
    return [
        *("train", str(JOBS / "counting.yaml"), "--run-dir", str(run_dir)),
        *(f"{place}.init_args.samples={SAMPLES}" for place in ("model", "data.train")),
        *(f"model.init_args.diary={diary}", f"model.init_args.pace_s={PACE_S}", "train.exchange=direct"),
        *(f"train.epochs={EPOCHS}", "checkpoint.every_s=1", "supervise.max_restarts=1000"),
        *(f"supervise.{limit}_timeout_s={STOPPED_S}" for limit in ("start", "stall")),
    ]


def _again(diary: Path, run_dir: Path) -> list[str]:
    if (run_dir / "resolved.yaml").exists():
        return ["train", "--resume", str(run_dir)]
    return _arguments(diary, run_dir)
