"""The number of threads that a worker really has, counted by the kernel while it multiplies large matrices; and that
memory which it freed stays its own."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from hogwild import host
from tests.helpers.jobs import JOBS, Job

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
