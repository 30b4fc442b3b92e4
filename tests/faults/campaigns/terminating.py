"""The job is asked to stop, with SIGTERM, at random moments of its life, again and again in one run. Every time it is
out within the grace: with a checkpoint that verifies and holds exactly what the job says it has done (exit 75), or,
before anything was started, as if it had never been called (143, or the signal itself while the interpreter starts)."""

import signal
import time
from pathlib import Path

import torch

from hogwild.chaos.verdict import Baseline
from tests.faults.again import BATCH, EPOCHS, again_and_again, ended_by_itself, send_at
from tests.faults.invariants import Counted, violations
from tests.faults.tally import Moment, Tally
from tests.helpers.jobs import Job
from tests.helpers.processes import PATIENCE_S

GRACE_S = 30.0  # what is asked for
NOTHING_STARTED = (143, -signal.SIGTERM)


def run(seed: int, count: int, folder: Path) -> Tally:
    return again_and_again("terminating", seed, count, folder, _terminate_at)


def _terminate_at(job: Job, moment: Moment, before: Baseline, tally: Tally) -> None:
    content = _content(job.run_dir)
    sent_s = send_at(job, moment, signal.SIGTERM)
    if sent_s is None:
        tally.violations.append(ended_by_itself(job))
        return
    tally.injected += 1
    job.process.wait(PATIENCE_S)
    seconds = time.monotonic() - sent_s
    tally.note("seconds to the end", round(seconds, 3))
    ended = job.wait()
    found = [f"it took {seconds:.1f} s"] if seconds > GRACE_S else []
    if ended.status in NOTHING_STARTED:
        found += [f"left behind: {thing}" for thing in ended.left_behind]
        if _content(job.run_dir) != content:
            found.append(f"exit status {ended.status}, but the run directory has changed")
        tally.note("before anything was started", 1.0)
    elif ended.status == 75 and not ended.summary["updates"]:
        found += [f"left behind: {thing}" for thing in ended.left_behind]
        tally.note("before the first update", 1.0)
    else:
        counted = Counted(0, EPOCHS, BATCH)
        found += violations(ended, before, status=75, counted=counted)
        if ended.status == 75 and not torch.equal(ended.effects(), ended.effects().round()):
            found.append("effects that are no whole numbers")
    tally.violations += [f"SIGTERM at {moment}: {words}" for words in found]
    tally.survived += not found


def _content(run_dir: Path) -> dict[str, bytes]:
    """Every file of the run but the checkpoints, which are large and named by what they hold."""
    files = (file for file in run_dir.rglob("*") if file.is_file() and not file.is_symlink())
    return {str(file): b"" if "checkpoints" in file.parts else file.read_bytes() for file in files}
