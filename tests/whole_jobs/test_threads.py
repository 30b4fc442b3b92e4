"""The number of threads that a worker really has, counted by the kernel while it multiplies large matrices; and that
memory which it freed stays its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from hogwild import host
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

# OpenMP, MKL and numpy's OpenBLAS have a pool each, of one thread less than they were told, beside the main thread;
# only one of them is at work at a time.
POOLS = 3


@pytest.mark.parametrize(
    ("procs", "variable", "threads"),
    [
        pytest.param(2, None, max(1, int(host.usable_cores().usable // 2)), id="two workers share the cores"),
        pytest.param(1, "3", 3, id="OMP_NUM_THREADS of the user is taken"),
    ],
)
def test_a_worker_has_the_threads_of_the_plan(
    procs: int, variable: str | None, threads: int, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    answer = tmp_path / "answer"
    arguments = (str(tmp_path / "run"), str(answer), str(procs))
    extra = {"OMP_NUM_THREADS": variable} if variable else None
    ended = start_job(
        tmp_path / "job", *arguments, python=(str(JOBS / "threads.py"),), run_dir=tmp_path / "run", extra=extra
    ).wait()
    assert ended.status == 0, ended.stderr
    assert json.loads(ended.stdout) == {"threads": threads, "summary": threads}
    seen = [json.loads(line) for line in answer.read_text().splitlines()]
    assert {note["torch"] for note in seen} == {threads}
    assert threads <= max(note["threads"] for note in seen) <= 1 + POOLS * (threads - 1)
    # A block anew is 2,048 faults: until the heap has settled, after a few batches; without it in most of all.
    assert median(note["faults"] for note in seen) < 100
    assert not ended.left_behind


SEES_THREADS = """
import sys, time, torch, hogwild
from torch import nn
from torch.utils.data import TensorDataset

FILE, procs = sys.argv[1], int(sys.argv[2])

class Sees(nn.Linear):
    def forward(self, inputs):
        time.sleep(0.005)
        with open(FILE, "a") as seen:
            seen.write(f"{torch.get_num_threads()} ")
        return super().forward(inputs)

model = Sees(4, 1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hogwild.train(model, data, nn.MSELoss(), optimizer, procs=procs, batch_size=4, epochs=10**6, run_dir="run")
"""
ANOTHER_JOB = "import sys; from hogwild import host; host.lease_cores(%d, 1); print(flush=True); sys.stdin.read()"


BEGINS_TOGETHER = """
import os, subprocess, sys, torch, hogwild
from hogwild import host
from torch import nn
from torch.utils.data import TensorDataset

FILE, another, look = sys.argv[1], [], host.other_core_leases

def other_core_leases():
    found = look()
    if not another:  # another job, which begins when this one has looked for others, and has not told of itself
        code = [sys.executable, "-c", %r]
        another.append(subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        another[0].stdout.readline()
    return found

class Sees(nn.Linear):
    def forward(self, inputs):
        with open(FILE, "a") as seen:
            seen.write(f"{os.environ.get('OMP_WAIT_POLICY')} ")
        return super().forward(inputs)

host.other_core_leases = other_core_leases
model = Sees(4, 1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
rule = torch.optim.SGD(model.parameters(), lr=0.01)
hogwild.train(model, data, nn.MSELoss(), rule, procs=1, threads=int(sys.argv[2]), batch_size=32, run_dir="run")
another[0].kill()
"""


@pytest.mark.skipif(not 2 <= host.usable_cores().usable < 64, reason="needs more threads than cores")
def test_a_job_with_its_own_number_of_threads_sees_another_that_begins_in_the_same_instant(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    script, seen, threads = tmp_path / "script.py", tmp_path / "seen", int(host.usable_cores().usable)
    script.write_text(BEGINS_TOGETHER % (ANOTHER_JOB % 1))
    job = start_job(tmp_path / "job", str(seen), str(threads), python=(str(script),), run_dir=tmp_path / "job/run")
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert "PASSIVE" in seen.read_text().split(), "in the workers; the trial's process is the caller's"


@pytest.mark.skipif(host.usable_cores().usable < 2, reason="needs two cores to give one up")
@pytest.mark.parametrize("procs", [1, 0])
def test_threads_follow_another_job_that_comes_and_goes(
    procs: int, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    script, seen, most = tmp_path / "script.py", tmp_path / "seen", int(host.usable_cores().usable)
    script.write_text(SEES_THREADS)
    seen.touch()
    job = start_job(tmp_path / "job", str(seen), str(procs), python=(str(script),), run_dir=tmp_path / "job/run")

    def has(threads: int) -> bool:
        return seen.read_text().split()[-1:] == [str(threads)]

    wait_for("all threads", lambda: has(most))
    code = [sys.executable, "-c", ANOTHER_JOB % (most - 1)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as another:
        wait_for("what it leaves", lambda: has(1))
        another.kill()
    wait_for("all threads again", lambda: has(most))
    job.process.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert not ended.left_behind
