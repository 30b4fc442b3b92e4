"""The start of processes under faults: the fork server, what it forks and the supervisor are killed and stopped at
named steps (fork_points.py; `make stress`: at each of them, and in 500 jobs); a process with a second thread is never
forked; and nothing that the caller has open is open in the server or in what it forks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaigns import forking
from tests.faults.campaigns.protocol import command
from tests.faults.fork_points import BETWEEN, CHILD, SERVED, SUPERVISOR
from tests.helpers.jobs import HOME, JOBS, Job, environment
from tests.helpers.processes import IS_THOROUGH, PATIENCE_S

COUNTING = str(JOBS / "counting.yaml")
WHICH = ("kill server", "stop server", "kill supervisor", "between at", "child at") if IS_THOROUGH else ("",)
EACH, FEWEST = (1, 90) if IS_THOROUGH else (80, 1500 // 80)  # fewer would mean that a process is not followed

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("which", WHICH)
def test_at_each_step_of_a_start_every_process_is_there_and_nobody_is_left(which: str, tmp_path: Path) -> None:
    found = command(tmp_path, "tests.faults.fork_points", "--every", str(EACH), "--only", which)
    assert found["violations"] == []  # each with its fault: `python -m tests.faults.fork_points --only FAULT`
    assert int(str(found["faults"])) >= FEWEST
    # A line that only some interleavings reach is no step of every start.
    assert int(str(found["struck"])) >= 0.8 * int(str(found["faults"]))


@pytest.mark.parametrize(
    ("how", "victim", "at"),
    [
        ("kill", SERVED, f"{BETWEEN}:_between"),
        ("stop", SERVED, f"{CHILD}:_become"),
        ("kill", BETWEEN, f"{BETWEEN}:_between"),
        ("kill", SUPERVISOR, f"{SERVED}:_forked"),
        ("kill", SUPERVISOR, f"{CHILD}:_become"),
    ],
)
def test_a_job_loses_nothing_when_its_server_or_its_supervisor_ends_at_a_step(
    how: str, victim: str, at: str, tmp_path: Path
) -> None:
    fits = [one for one in forking.every_fault() if (one.signal, one.victim, one.launch) == (how, victim, 1)]
    fault = next(one for one in fits if one.point.startswith(f"{at}+"))
    tally = forking.struck(fault, tmp_path)
    assert (tally.violations, tally.injected, tally.survived) == ([], 1, 1)


# ---- a second thread -------------------------------------------------------------------------------------------------

THREAD = """
import sys, threading
if {where!r} in " ".join(sys.orig_argv):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("where", "why"),
    [("run.py", ""), ("hogwild.workers.processes.fork_server", "the fork server has 2 threads after its imports")],
)
def test_a_process_of_two_threads_is_never_forked(
    where: str, why: str, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """A command with a thread of somebody's starts its server as an interpreter; one that has a thread itself forks
    nothing."""
    (tmp_path / "sitecustomize.py").write_text(THREAD.format(where="run.py"))
    if why:
        (tmp_path / "sitecustomize.py").write_text(THREAD.format(where="run.py") + THREAD.format(where=where))
    extra = {"PYTHONPATH": f"{tmp_path}:{HOME}"}
    ended = start_job(tmp_path / "job", COUNTING, extra=extra).wait()
    assert ended.status == 0, ended.stderr
    assert [event["why"] for event in ended.events("fresh-interpreter")] == ([why] if why else [])
    assert ended.ledger_adds_up() and not ended.left_behind


# ---- nothing of the caller's is open in them -------------------------------------------------------------------------

CALLER = """
import fcntl, json, os, socket, sys, tempfile
import torch
import hogwild
from hogwild import host
from hogwild.workers.processes.fork_server import SERVER

def mine():
    lock = open(os.path.join(sys.argv[1], "lock"), "a+")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    listening = socket.create_server(("127.0.0.1", 0))
    pipe = os.pipe()
    things = [lock, listening, tempfile.TemporaryFile(), pipe, os.memfd_create("mine")]
    numbers = [lock.fileno(), listening.fileno(), things[2].fileno(), *pipe, things[4]]
    for number in numbers:
        os.set_inheritable(number, True)
    return things, {tuple(os.stat(number)[k] for k in (1, 2)) for number in numbers}

class Looking:
    def on_evaluation(self, event):
        for pid in host.children(os.getpid()):
            name = host.process_name(pid)
            for number in os.listdir(f"/proc/{pid}/fd"):
                try:
                    found = tuple(os.stat(f"/proc/{pid}/fd/{number}")[k] for k in (1, 2))
                except FileNotFoundError:
                    continue
                seen.add(name)
                if found in wanted:
                    held.append([name, os.readlink(f"/proc/{pid}/fd/{number}")])

model, held, seen, wanted = torch.nn.Linear(4, 2), [], set(), set()
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for call in range(2):  # before there is a server, and while it waits
    things, inodes = mine()
    kept.append(things)
    wanted |= inodes
    more = {"val": data, "procs": 2, "epochs": 2, "callbacks": [Looking()]}
    hogwild.train(model, data, torch.nn.CrossEntropyLoss(), optimizer, **more)
    things[0].close()  # the next call locks it again, though the server lives
print(json.dumps([sorted(seen), held, SERVER.pid is not None]))
"""


def answer_of(program: str, folder: Path) -> Any:
    """The last line that a program prints, in a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=folder,
        env=environment("forking", folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_that_the_caller_of_train_has_open_is_open_in_the_server_or_a_worker(tmp_path: Path) -> None:
    seen, held, is_there = answer_of(CALLER, tmp_path)
    assert (held, is_there) == ([], True) and {"hogwild-child", "hogwild-server"} <= {*seen}


MANY = """
import torch
import hogwild
from hogwild import host

class Looking:
    def on_evaluation(self, event):
        seen.extend(host.process_name(pid) for pid in host.children(os.getpid()))

import json, os
seen, model = [], torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(500)))
before = [parameter.clone() for parameter in model.parameters()]
data = torch.utils.data.TensorDataset(torch.randn(16, 2), torch.zeros(16, dtype=torch.long))
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
given = {"val": data, "procs": 2, "epochs": 1, "batch_size": 4, "callbacks": [Looking()]}
result = hogwild.train(model, data, torch.nn.CrossEntropyLoss(), optimizer, **given)
moved = not torch.equal(before[-1], [*model.parameters()][-1])
print(json.dumps([len(before), moved, result.samples, seen.count("hogwild-child")]))
"""


@pytest.mark.whole
def test_a_model_of_a_thousand_parameters_is_trained_by_forks(tmp_path: Path) -> None:
    assert answer_of(MANY, tmp_path) == [1000, True, 16, 2]
