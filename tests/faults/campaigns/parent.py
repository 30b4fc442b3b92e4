"""The supervisor is killed with SIGKILL at random moments of its life, the first seconds included, again and again in
one run; then the run is left alone and finishes. After every kill nothing of the job is left two seconds later."""

import signal
import time
from pathlib import Path

from hogwild.chaos.verdict import Baseline
from hogwild.host import other_jobs
from tests.faults.again import again_and_again, ended_by_itself, send_at
from tests.faults.tally import Moment, Tally
from tests.helpers.jobs import Job
from tests.helpers.processes import marked, shared_memory_names

GONE_S = 2.0  # what is asked for


def run(seed: int, count: int, folder: Path) -> Tally:
    return again_and_again("parent", seed, count, folder, _kill_at)


def _kill_at(job: Job, moment: Moment, before: Baseline, tally: Tally) -> None:
    killed_s = send_at(job, moment, signal.SIGKILL)
    if killed_s is None:
        tally.violations.append(ended_by_itself(job))
        return
    tally.injected += 1
    job.process.wait()
    if found := _left(job):
        tally.violations.append(f"{GONE_S:g} s after the kill at {moment} there are {found}")
        job.destroy()
        return
    tally.note("seconds until nothing was left", round(time.monotonic() - killed_s, 3))
    tally.survived += 1


def _left(job: Job) -> list[str]:
    _, left = other_jobs.wait_until_gone(lambda: marked(job.mark), GONE_S)
    return [f"process {pid}: {command}" for pid, command in left.items()] + sorted(
        shared_memory_names() - job.shared_before
    )
