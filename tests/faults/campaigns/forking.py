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
from tests.faults.invariants import Counted, Roll, begin, in_doubt, judge
from tests.faults.tally import Tally, chance
from tests.helpers.jobs import JOBS, RUN_PY
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
    arguments = [
        str(JOBS / "counting.yaml"),
        *(f"{place}.init_args.samples={SAMPLES}" for place in ("model", "data.train")),
        *(f"model.init_args.diary={diary}", f"model.init_args.pace_s={PACE_S}", "train.exchange=direct"),
        *(f"train.epochs={EPOCHS}", "checkpoint.every_s=1", "supervise.max_restarts=1000"),
        *(f"supervise.{limit}_timeout_s={STOPPED_S}" for limit in ("start", "stall")),
    ]
    job = begin(folder, run_dir, arguments, python=with_fault(fault, mark, RUN_PY))
    try:
        with Roll(job) as roll:  # once a worker trains it is killed, so that another process is started
            wait_for("a worker that trains", lambda: not roll.look_alive() or roll.is_training)
            if roll.is_training:
                roll.training()[0].send(signal.SIGKILL)
        (diary / "hurry").touch()
        ended = job.wait()
        if was_killed := (ended.status == -signal.SIGKILL and fault.victim == SUPERVISOR):
            tally.violations += [f"left by the supervisor: {words}" for words in ended.left_behind]
            job = begin(folder / "again", run_dir, arguments)
            ended = job.wait()
        judge(tally, ended, before, Counted.all_of(EPOCHS, BATCH))
        if ended.status == 0 and not was_killed:
            tally.indeterminate = in_doubt(ended)
    except AssertionError as error:
        tally.hangs += 1
        tally.violations.append(str(error))
    finally:
        job.destroy()
    tally.injected = int(mark.exists())
    tally.survived = int(tally.injected and not (tally.violations or tally.lost or tally.duplicated))
    tally.note(f"{fault.signal} of the {fault.victim}", tally.injected)
    return tally
