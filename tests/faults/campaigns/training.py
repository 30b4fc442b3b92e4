"""Real training on torch, and workers killed with SIGKILL at random times of their lives: while they start, train,
wait, are parked for a checkpoint, evaluate. The parent that kills is not the job's.

    run.py train -> kills, by the seed -> SIGTERM, exit 75 -> --resume to the end of an epoch -> the invariants

LeNet is what people train; the counting model (jobs/counting.py) says exactly what took effect, for both policies, in
direct with two workers and in delta with one: two flushes at a time may lose words of each other, which is no fault."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hogwild import host
from hogwild.chaos.inject import Target
from hogwild.chaos.verdict import Baseline
from hogwild.monitoring.profile_report import read_phases
from tests.faults.invariants import Counted, Roll, in_doubt, miscount_of, unaccounted, violations
from tests.faults.tally import Lives, Tally
from tests.helpers.jobs import HOME, JOBS, Ended, Job, start
from tests.helpers.processes import PATIENCE_S

NAME = "training"
LOOK_MS = 10
BATCH = 8
SAMPLES = 20_000
POSITIONS = 2_000  # of an epoch of rollouts
FOR_EVER = 1_000_000
PROFILED = "100:200"  # updates of each worker

# Kills come far more often than any limit is meant for, and no batch is to blame for one.
POLICY = ["supervise.max_restarts=1000000", "supervise.max_item_attempts=1000000"]
# A worker that is only slow, or not scheduled for a while, is no crime.
PATIENT = [f"supervise.{limit}_timeout_s=900" for limit in ("start", "stall", "deadlock")]
BUSY = ["checkpoint.every_s=1", "evaluate.every_epochs=1", "log.every_s=0.05"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A job that is killed; one with a `batch` counts its effects."""

    name: str
    arguments: Sequence[str]
    batch: int | None = None

    def counted(self, epochs: int, *, is_whole: bool) -> Counted | None:
        """Every epoch waits for an evaluation, so only the last one can be there in part."""
        return None if self.batch is None else Counted(epochs if is_whole else epochs - 1, epochs, self.batch)


def lenet(exchange: str) -> Kind:
    """MNIST where its files are, the bundled digits elsewhere."""
    folder = os.environ.get("HOGWILD_DATA")
    has_mnist = folder is not None and any(Path(folder).glob("**/train-images*"))
    name, file = ("LeNet", "mnist.yaml") if has_mnist else ("digits", "digits.yaml")
    return Kind(f"{name} {exchange}", [str(HOME / "configs" / file), "train.procs=2", f"train.exchange={exchange}"])


def counting(exchange: str, policy: str) -> Kind:
    arguments = [
        str(JOBS / "counting.yaml"),
        f"model.init_args.samples={SAMPLES}",
        f"data.train.init_args.samples={SAMPLES}",
        f"data.val={{class_path: counting.Numbers, init_args: {{samples: {SAMPLES}}}}}",
        f"data.batch_size={BATCH}",
        f"supervise.on_indeterminate={policy}",
        f"train.exchange={exchange}",
        f"train.procs={2 if exchange == 'direct' else 1}",
    ]
    return Kind(f"counting {exchange} {policy}", arguments, BATCH)


def rollouts() -> Kind:
    """A counting job whose positions are played by the workers (jobs/playing.py)."""
    played = "{class_path: playing.Positions, init_args: {updates_per_epoch: %d}}"
    arguments = [
        str(JOBS / "counting.yaml"),
        f"model.init_args.samples={POSITIONS}",
        f"data.train={played % POSITIONS}",
        f"data.val={played % 50}",
        "data.batch_size=64",
        "train.procs=2",
    ]
    return Kind("rollouts", arguments, batch=1)


def kind_of(seed: int) -> Kind:
    """They go around: LeNet every second time, what counts its effects in between."""
    around = [counting(exchange, policy) for exchange in ("direct", "delta") for policy in ("redo", "skip")]
    return around[seed // 2 % 4] if seed % 2 else lenet(("direct", "auto")[seed // 2 % 2])


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` kills in one job."""
    kind = kind_of(seed)
    tally = bout(kind, Lives(NAME, seed), count, folder)
    tally.note(f"{kind.name}: kills", tally.injected)
    tally.note(f"{kind.name}: in doubt", tally.indeterminate)
    share = apply_share(kind, folder / "profile")
    if share is not None:
        tally.note(f"{kind.name}: % of an update in apply", 100 * share)
    return tally


# ---- one job --------------------------------------------------------------------------------------------------------


def bout(kind: Kind, lives: Lives, count: int, folder: Path) -> Tally:
    """Kills `count` workers of one job, stops it in order, and has it resumed to the end of its epoch."""
    before = Baseline.now()
    job = start(folder / "killed", "train", *kind.arguments, *POLICY, *PATIENT, *BUSY, f"train.epochs={FOR_EVER}")
    tally = Tally()
    try:
        tally.injected, tally.survived = kill_workers(job, lives, count)
        job.send(signal.SIGTERM)
        stopped = job.wait()
        epochs = 1 + int(job.status()["epoch"])
        _judge(tally, stopped, before, 75, kind.counted(epochs, is_whole=False))
        resumed = start(
            folder / "resumed", "train", "--resume", str(job.run_dir), f"train.epochs={epochs}", run_dir=job.run_dir
        )
        job = resumed
        ended = resumed.wait()
    except AssertionError as error:  # it did not go on, or did not end
        tally.hangs += 1
        tally.violations.append(str(error))
        return tally
    finally:
        job.destroy()
    _judge(tally, ended, before, 0, kind.counted(epochs, is_whole=True))
    tally.indeterminate = in_doubt(ended)
    tally.violations += unaccounted(ended)
    return tally


def _judge(tally: Tally, ended: Ended, before: Baseline, status: int, counted: Counted | None) -> None:
    found = violations(ended, before, status=status, counted=counted)
    tally.violations += found
    if ended.status == status:
        wrong = miscount_of(ended, counted)
        tally.lost = max(tally.lost, wrong.lost)  # the end counts what the stop has counted before
        tally.duplicated = max(tally.duplicated, wrong.duplicated)


def kill_workers(job: Job, lives: Lives, count: int) -> tuple[int, int]:
    """(kills, those after which the job said so and went on). Raises AssertionError when the job ends by itself, or
    does nothing for PATIENCE_S."""
    killed: set[int] = set()
    with Roll(job) as roll:
        progress: tuple[int, int] = (0, 0)
        since = time.monotonic()
        while not _has_gone_on(roll, killed, count):
            _look(roll, job)
            for member in list(roll.targets.values()):
                if len(killed) < count and member.pid not in killed and _is_due(member, roll, lives):
                    killed |= {member.pid} if member.send(signal.SIGKILL) else set()
            if (now := (int(job.status().get("updates", 0)), len(roll.exits))) != progress:
                progress, since = now, time.monotonic()
            assert time.monotonic() - since < PATIENCE_S, f"nothing happened for {PATIENCE_S:g} s:\n{job.stderr()}"
        noticed = {event["pid"] for event in roll.exits}
    return len(killed), len(killed & noticed)


def _look(roll: Roll, job: Job) -> None:
    """Waits for a death, or a little."""
    host.wait_readable([member.pidfd for member in roll.targets.values()], LOOK_MS)
    assert roll.look_alive(), f"the job ended by itself, with {job.process.returncode}:\n{job.stderr()[-2000:]}"


def _is_due(member: Target, roll: Roll, lives: Lives) -> bool:
    """A start is never broken off twice in a row: the third time the job would rightly give the worker up."""
    death = lives.death_of(member.worker, member.incarnation)
    if death.while_starting and not roll.fruitless.get(member.worker):
        since: float | None = member.began_s
    else:
        since = member.trains_since_s
    return since is not None and time.monotonic() - since >= death.after_s


def _has_gone_on(roll: Roll, killed: set[int], count: int) -> bool:
    """All kills are made and noticed, and somebody trains again."""
    return len(killed) >= count and killed <= {event["pid"] for event in roll.exits} and bool(roll.training())


# ---- how long what can leave a doubt takes --------------------------------------------------------------------------


def apply_share(kind: Kind, folder: Path) -> float | None:
    """The part of an update's time, without waiting, in which its worker writes the shared memory: what a random kill
    hits with that probability. None when no worker came so far."""
    job = start(folder, "train", *kind.arguments, "train.max_updates=1000", "data.val=null", "--profile", PROFILED)
    try:
        job.wait()
    finally:
        job.destroy()
    records = [read_phases(job.run_dir / "profile", worker) for worker in (0, 1)]
    updates = [times for record in records if record is not None for times in record.timed]
    busy = sum(time_ for times in updates for phase, time_ in times.items() if phase != "wait")
    return sum(times.get("apply", 0) for times in updates) / busy if busy else None
