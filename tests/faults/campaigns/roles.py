"""Every child of a job may be killed, whatever its role and whatever it does just then: the fork server, readers,
workers, loaders, the owner of a GPU's parameters (simulated). Meanwhile the number of workers changes. In the end every
sample took effect once per epoch.

    stream   loaders, workers
    read     readers, workers
    gpu      the owner, workers"""

import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

from hogwild import host
from hogwild.chaos.verdict import Baseline
from hogwild.host import other_jobs
from tests.faults.invariants import Counted, begin, judge
from tests.faults.tally import Tally, chance
from tests.helpers import zygote
from tests.helpers.jobs import JOBS, Job, write_request
from tests.helpers.processes import wait_for

NAME = "roles"
SAMPLES, BATCH = 600, 4
EVERY_S = 0.2  # between two kills, on average
RESIZES = 0.15  # how many of the moments are used for one instead
MOST_PROCS = 4
SIMULATED = {"HOGWILD_DEVICE_KINDS": "simulated=tests.helpers.simulated_gpu"}
os.environ.update(SIMULATED)  # for the verdict, which reads the job file
KINDS = {
    "stream": [
        f"data.train={{class_path: streaming.Numbers, init_args: {{samples: {SAMPLES}, paces: [0.002, 0.004]}}}}",
        "data.feed=stream",
        "data.loaders=2",
    ],
    "read": [f"data.train={{class_path: counting.Paced, init_args: {{samples: {SAMPLES}, pace_s: 0.02}}}}"],
    "gpu": ["train.device=simulated:0", "train.placement=cuda-shared", f"data.train.init_args.samples={SAMPLES}"],
}
PATIENT = [
    *(f"supervise.{name}=100000" for name in ("max_restarts", "max_item_attempts")),
    *(f"supervise.{limit}_timeout_s=900" for limit in ("start", "stall", "deadlock")),
]


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` kills, in one job of each kind."""
    tally = Tally()
    zygote.own()  # before anything is counted
    for kind in KINDS:
        tally += _Struck(kind, chance(NAME, seed, len(tally.measured)), folder / kind).judged(count // len(KINDS), seed)
    return tally


class _Struck:
    """One run, and its attempts."""

    def __init__(self, kind: str, dice: Random, folder: Path) -> None:
        self._kind, self._dice, self._folder = kind, dice, folder
        self._diary, self._run_dir = folder / "diary", folder / "run"
        self._diary.mkdir(parents=True)
        self._attempts = self._kills = self._resizes = 0

    def judged(self, kills: int, seed: int) -> Tally:
        tally, before = Tally(), Baseline.now()
        job = self._begin()
        try:
            while self._kills < kills and not tally.violations:
                if job.process.poll() is None:
                    self._strike(job)
                elif (ended := job.wait()).status == 1 and "holds the parameters" in ended.stderr:
                    job = self._begin()  # its owner was killed
                else:
                    tally.violations.append(f"it ended by itself: {ended.status} {ended.stderr[-2000:]}")
            (self._diary / "hurry").touch()
            while (ended := job.wait()).status == 1 and "holds the parameters" in ended.stderr:
                job = self._begin()
            judge(tally, ended, before, Counted.all_of(1, BATCH))
            tally.indeterminate = ended.leases["indeterminate"] if ended.status == 0 else 0
        except AssertionError as error:
            tally.hangs += 1
            tally.violations.append(str(error))
        finally:
            job.destroy()
        tally.injected = self._kills
        tally.survived = 0 if tally.violations or tally.lost or tally.duplicated else self._kills
        tally.violations = [f"{self._kind}, seed {seed}: {found}" for found in tally.violations]
        tally.note(f"kills of {self._kind}", self._kills)
        tally.note(f"resizes of {self._kind}", self._resizes)
        return tally

    def _begin(self) -> Job:
        self._attempts += 1
        folder = self._folder / f"attempt-{self._attempts}"
        arguments = [
            str(JOBS / "counting.yaml"),
            *KINDS[self._kind],
            f"model.init_args={{samples: {SAMPLES}, diary: {self._diary}, pace_s: 0.15}}",
            f"train.procs_max={MOST_PROCS}",
            "checkpoint.every_s=1",
            *PATIENT,
        ]
        return begin(folder, self._run_dir, arguments, extra=SIMULATED)

    def _strike(self, job: Job) -> None:
        """Kill a child, or resize, after a while."""
        until = time.monotonic() + self._dice.expovariate(1 / EVERY_S)
        wait_for("its moment", lambda: time.monotonic() >= until or job.process.poll() is not None)
        if self._dice.random() < RESIZES:
            self._resize()
            return
        hit = [pid for pid in host.children(job.process.pid) if _is_ours(pid) and self._may_be_hit(pid, job)]
        pidfd = other_jobs.open_child(self._dice.choice(hit), job.process.pid) if hit else None
        if pidfd is not None:
            self._kills += host.kill_by_pidfd(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def _may_be_hit(self, pid: int, job: Job) -> bool:
        """Three starts of a worker or loader that fail in a row would end the job by its own rules."""
        spawns = [event for event in job.events() if event["event"].endswith("spawn") and "incarnation" in event]
        place = next((_place(event) for event in spawns if event.get("pid") == pid), None)
        if place is None:
            return True
        readies = {event["pid"] for event in job.events() if event["event"].endswith("ready")}
        before = [event["pid"] for event in spawns if _place(event) == place][-2:-1]
        return pid in readies or readies.issuperset(before)

    def _resize(self) -> None:
        if self._run_dir.exists():
            self._resizes += 1
            write_request(self._run_dir, str(self._resizes), ask="resize", procs=self._dice.randint(1, MOST_PROCS))


def _is_ours(pid: int) -> bool:
    """Our children lead groups of their own; multiprocessing's resource tracker does not."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _place(event: dict[str, Any]) -> tuple[str, int]:
    return ("worker", event["worker"]) if "worker" in event else ("loader", event["loader"])
