"""Workers are stopped with SIGSTOP for about as long as the stall limit allows, and continued. Who was too long is
fenced: killed before anybody else has its work, so that it cannot wake up and write. Who was not goes on.

An exchange in doubt is skipped in these jobs, so no sample may ever take effect twice: what a fenced worker had in hand
is redone only where nothing of it was written. How fast the others are is read from their diaries, one line a batch;
their speed is that of a pace they keep, not of a machine that is busy with the replacement."""

import os
import signal
import statistics
import time
from pathlib import Path
from random import Random

from hogwild import host
from hogwild.chaos.inject import Target
from hogwild.chaos.verdict import Baseline
from tests.faults.campaigns.training import FOR_EVER, POLICY
from tests.faults.invariants import Counted, Roll, in_doubt, miscount_of, unaccounted, violations
from tests.faults.tally import Tally, chance
from tests.helpers.jobs import JOBS, Job, start
from tests.helpers.processes import state_of, wait_for

NAME = "stopping"
PROCS = 3
BATCH = 4
SAMPLES = 8_000
PACE_S = 0.01  # per batch; the work itself takes a tenth of it
LIMIT_S = 1.0  # supervise.stall_timeout_s
AROUND_S = 0.4  # stops are longer or shorter than the limit by at most this
UNDISTURBED_S = 0.5


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` stops of workers of one job: direct or delta, by the seed."""
    tally = Tally()
    before = Baseline.now()
    diary = folder / "diary"
    diary.mkdir(parents=True)
    job = start(folder / "stopped", "train", *_arguments(diary, ("direct", "delta")[seed % 2]))
    try:
        _strike(job, diary, chance(NAME, seed), count, tally)
        job.send(signal.SIGTERM)
        stopped = job.wait()
        epoch = int(job.status()["epoch"])
        # Epochs flow into each other here: the one after the first unfinished one may have been begun.
        unfinished = Counted(epoch, epoch + 2, BATCH) if _is_exact(seed) else None
        tally.violations += violations(stopped, before, status=75, counted=unfinished)
        (diary / "hurry").touch()
        epochs = f"train.epochs={epoch + 2}"
        job = start(folder / "resumed", "train", "--resume", str(job.run_dir), epochs, run_dir=job.run_dir)
        ended = job.wait()
    except AssertionError as error:
        tally.hangs += 1
        tally.violations.append(str(error))
        return tally
    finally:
        job.destroy()
    whole = Counted.all_of(epoch + 2, BATCH)
    tally.violations += violations(ended, before, counted=whole if _is_exact(seed) else None)
    if ended.status == 0:
        wrong = miscount_of(ended, whole)
        tally.lost += wrong.lost if _is_exact(seed) else 0
        tally.duplicated += wrong.duplicated
        tally.violations += [f"{wrong.duplicated} batches done twice"] if wrong.duplicated else []
        tally.indeterminate = in_doubt(ended)
        tally.violations += unaccounted(ended)
    return tally


def _is_exact(seed: int) -> bool:
    """In delta two flushes at a time may lose words of each other: there, only what is too much is a fault."""
    return seed % 2 == 0


def _arguments(diary: Path, exchange: str) -> list[str]:
    return [
        str(JOBS / "counting.yaml"),
        *[f"{place}.init_args.samples={SAMPLES}" for place in ("model", "data.train")],
        f"model.init_args.diary={diary}",
        f"model.init_args.pace_s={PACE_S}",
        f"supervise.stall_timeout_s={LIMIT_S}",
        f"train.exchange={exchange}",
        f"train.procs={PROCS}",
        f"train.epochs={FOR_EVER}",
        "train.sync_every=4",
        "supervise.on_indeterminate=skip",
        "checkpoint.every_s=null",  # a pause would make the others wait for whoever is stopped, until it is fenced
        "data.shuffle=none",
        *POLICY,
    ]


def _strike(job: Job, diary: Path, drawn: Random, count: int, tally: Tally) -> None:
    ratios: list[float] = []
    with Roll(job) as roll:
        for _ in range(count):
            _wait_until(roll, "all workers train", lambda: len(roll.training()) == PROCS)
            victim = drawn.choice(roll.training())
            others = [member for member in roll.training() if member is not victim]
            asleep_s = LIMIT_S + drawn.uniform(-AROUND_S, AROUND_S)
            undisturbed = _speed(diary, others, UNDISTURBED_S)
            if not victim.send(signal.SIGSTOP):
                continue  # nothing was injected; the count says so
            tally.injected += 1
            wait_for("the stop", lambda victim=victim: state_of(victim.pid) in ("T", "Z", None))  # type: ignore[misc]
            ratios.append(_speed(diary, others, asleep_s) / undisturbed)
            victim.send(signal.SIGCONT)
            tally.note("fenced", float(_is_fenced(roll, victim, diary)))
            tally.survived += 1
    if ratios:
        tally.note("others' speed while one is stopped, over before (median of the job)", statistics.median(ratios))


def _is_fenced(roll: Roll, victim: Target, diary: Path) -> bool:
    """Whether it was killed for its silence. One that goes on is asked to leave: from now on its limit is 20 times its
    slowest batch, and that was a stop."""
    notes = _notes(diary, victim)

    def settled() -> bool:
        return victim.pid in _gone(roll) or _notes(diary, victim) > notes

    _wait_until(roll, "it to be fenced, or to go on", settled)
    victim.send(signal.SIGTERM)
    _wait_until(roll, "its end", lambda: victim.pid in _gone(roll))
    (how,) = (str(event["how"]) for event in roll.exits if event["pid"] == victim.pid)
    return how.startswith("stalled")


def _gone(roll: Roll) -> set[int]:
    return {event["pid"] for event in roll.exits}


def _wait_until(roll: Roll, what: str, holds) -> None:  # type: ignore[no-untyped-def]
    def look() -> bool:
        assert roll.look_alive(), f"the job ended while it was waited for {what}:\n{roll.job.stderr()[-2000:]}"
        return bool(holds())

    wait_for(what, look)


def _speed(diary: Path, members: list[Target], seconds: float) -> float:
    """Batches a second of these workers together, over the next `seconds`."""
    before, began = sum(_notes(diary, member) for member in members), time.monotonic()
    host.wait_readable([], 1000 * seconds)
    return (sum(_notes(diary, member) for member in members) - before) / (time.monotonic() - began)


def _notes(diary: Path, member: Target) -> int:
    """Batches it has begun."""
    file = diary / f"train-{member.pid}"
    return file.read_bytes().count(b"\n") if os.path.exists(file) else 0
