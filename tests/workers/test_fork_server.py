"""The fork server: its forks are what fresh interpreters are, it may die at any moment, and nothing of it is left."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild import by_value, host
from hogwild.config.schema import Supervise
from hogwild.feeds.row_reader import RowSource
from hogwild.planning.cpu_plan import plan_here
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.workers.child.loader import RowsRecipe, recipe_of
from hogwild.workers.loading.loaders import Loaders
from hogwild.workers.loading.loading import RangeWork
from hogwild.workers.processes import fork_server
from hogwild.workers.processes.fork_server import CHILD_NAME, SERVER, Forked
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Role, Roster, limits_of
from tests.helpers.jobs import HOME, JOBS, Job
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")


@contextmanager
def group(*, is_forked: bool = True) -> Iterator[ProcessGroup]:
    with ProcessGroup(Supervise()) as made:
        made.start(plan_here(1, 1, pin=False), is_forked=is_forked)
        yield made


def is_gone(pid: int) -> bool:
    return state_of(pid) is None


def started(made: ProcessGroup) -> Handle:
    """A reader without a range to read."""
    nothing = RowsRecipe(RowSource.of([(torch.zeros(1), 0)], "data.train", 0), 0, 1, (), False)
    recipe = recipe_of(*by_value.dumps_apart(nothing))
    limits = limits_of(Role.READER, made.supervise)
    work = RangeWork("data.train", RowRanges(0, 0, 1), limits)
    team = Loaders(made, Roster(Role.READER, limits, 1), work, recipe, {})
    made.teams.append(team)
    assert made.step(time.monotonic(), [team]) == []
    return team[0]


def waiting(made: ProcessGroup) -> Handle:
    """One that is ready, and waits for work."""
    handle = started(made)
    wait_for("it to wait", lambda: (handle.listen(), handle.is_ready)[1])
    return handle


# ---- a fork is what a fresh interpreter is --------------------------------------------------------------------------

DISPOSITIONS = ("SigBlk", "SigIgn", "SigCgt")


def surroundings(pid: int) -> dict[str, Any]:
    """Return the facts of a process in /proc, without those in which two fresh interpreters differ."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    kept = ("PPid", "Uid", "Gid", "Groups", "Umask", "Cpus_allowed_list", "Threads", "Seccomp", *DISPOSITIONS)
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    own_group = int(stat[2]) == pid
    kinds = sorted(os.readlink(one).partition(":")[0] for one in (folder / "fd").iterdir())
    return {name: status[name].strip() for name in kept} | {
        "leads its group": own_group,
        "session": stat[3],
        "niceness": stat[16],
        "folder": os.readlink(folder / "cwd"),
        "limits": (folder / "limits").read_text(),
        "score": (folder / "oom_score_adj").read_text(),
        "descriptors": [kind for kind in kinds if kind != "/dev/null"],  # multiprocessing leaves one more
    }


@pytest.mark.whole
def test_a_fork_has_the_surroundings_of_a_fresh_interpreter_field_by_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is there before they change: a fork takes them over from the supervisor at that moment."""
    SERVER.start({}, kernels="")
    with group() as made:
        waiting(made)
    monkeypatch.chdir(tmp_path)
    mask, cores = os.umask(0o027), os.sched_getaffinity(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGUSR2, signal.SIG_IGN), signal.signal(signal.SIGWINCH, signal.SIG_IGN)
    try:
        os.sched_setaffinity(0, {min(cores)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, hard))
        found = []
        for is_forked in (True, False):
            with group(is_forked=is_forked) as made:
                handle = waiting(made)
                assert isinstance(handle.process, Forked) == is_forked
                found.append(surroundings(handle.pid))
    finally:
        os.umask(mask)
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for number, handler in zip((signal.SIGUSR2, signal.SIGWINCH), former, strict=True):
            signal.signal(number, handler)
    forked, fresh = found
    assert forked.pop("Threads") == "1"
    fresh.pop("Threads")  # numpy's own, which the server did not start
    held, more = forked.pop("descriptors"), fresh.pop("descriptors")
    assert held == [*["/memfd"] * 4, *["pipe"] * 4, "socket"], "its output twice, its beats, its recipe; the tracker"
    assert {*(Counter(more) - Counter(held))} == {"pipe"}, "multiprocessing's tracker, and its sign of our death"
    assert forked == fresh
    assert forked["PPid"] == str(os.getpid())


FACTS = """
import atexit, faulthandler, gc, json, multiprocessing, os, random, signal, sys, threading, warnings
import numpy, torch
from multiprocessing import process, resource_tracker, util
from threadpoolctl import threadpool_info

def facts():
    own = multiprocessing.current_process()
    return {
        "comm": open("/proc/self/comm").read().strip(), "collects": gc.isenabled(),
        "stdin": (sys.stdin.read(), os.readlink(f"/proc/self/fd/{sys.stdin.fileno()}")),
        "first process": multiprocessing.Process().name,
        "name": own.name, "identity": own._identity, "daemon": own.daemon,
        "parent": multiprocessing.parent_process().name,
        "parent is the parent": multiprocessing.parent_process().pid == os.getppid() == own._parent_pid,
        "children": len(multiprocessing.active_children()),
        "method": multiprocessing.get_start_method(allow_none=True), "log": util._logger is None,
        "threads": threading.active_count(), "main": sys.modules["__main__"].__name__, "argv": sys.argv,
        "path": sys.path, "folder": os.getcwd(), 
        "environment": sorted({*os.environ} - {"KMP_AFFINITY", "OMP_PROC_BIND"}),
        "handlers": {int(one): str(signal.getsignal(one)).partition(" at ")[0] for one in signal.valid_signals()},
        "streams": [(one.encoding, one.errors, one.line_buffering, one.closed) for one in (sys.stdout, sys.stderr)],
        "standard streams": (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__),
        "pools": sorted({(one["internal_api"], one["num_threads"]) for one in threadpool_info()}),
        "torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "random": (random.random(), numpy.random.random()),
        "faulthandler": faulthandler.is_enabled(), "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(), "filters": len(warnings.filters),
    }

class Model(torch.nn.Linear):
    def forward(self, features):
        if not os.path.exists(f"facts-{os.getpid()}"):  # the first time
            with open(f"facts-{os.getpid()}", "w") as file:
                json.dump(facts(), file)
        return super().forward(features)
"""
JOB = """
model: {class_path: facts.Model, init_args: {in_features: 64, out_features: 10}}
data: {train: {class_path: hogwild.data.Digits, init_args: {split: test}}}
loss: {class_path: torch.nn.CrossEntropyLoss}
train: {procs: 2, threads: 2, epochs: 1}
"""


def test_user_code_finds_in_a_fork_what_it_finds_in_a_fresh_interpreter(tmp_path: Path) -> None:
    """A job whose environment binds OpenMP to cores has no fork."""
    (tmp_path / "facts.py").write_text(FACTS)
    (tmp_path / "job.yaml").write_text(JOB)
    found = []
    for run, binding in (("forked", {}), ("fresh", {"KMP_AFFINITY": "compact"})):
        command = [sys.executable, str(HOME / "run.py"), "train", "job.yaml", "--run-dir", run]
        left_out = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")  # a fork's streams are not unbuffered, but by the line
        environment = {name: value for name, value in os.environ.items() if name not in left_out} | binding
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            preexec_fn=ignore,
        )
        assert done.returncode == 0, done.stderr
        told = []
        for file in tmp_path.glob("facts-*"):
            told.append(json.loads(file.read_text()))
            file.unlink()
        found.append(sorted(told, key=lambda one: one["identity"]))
    forked, fresh = found
    assert [one["identity"] for one in forked[:2]] == [[1], [2]], "the trial's, and a worker's"
    randoms = [one.pop("random") for one in (*forked, *fresh)]
    assert len({number for pair in randoms for number in pair}) == 2 * len(randoms), "reseeded"
    assert [{one.pop("comm") for one in some} for some in found] == [{CHILD_NAME}, {"python"}]
    for one in (*forked, *fresh):
        assert one.pop("first process") == f"Process-{one.pop('identity')[0]}:1"
    assert len(fresh) >= 2  # all may be trained before a fresh interpreter is there
    for one, other in zip(forked, fresh, strict=False):
        different = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
        assert different == {}, str(different)
    assert forked[0]["collects"] and forked[0]["parent is the parent"]


def ignore() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


# ---- it may end at any moment ----------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_was_killed_or_stopped_is_made_up_for_by_a_fresh_interpreter(
    number: int,
) -> None:
    SERVER.start({}, kernels="")
    with group() as made:
        first = waiting(made)
        server = SERVER.pid
        assert server is not None and isinstance(first.process, Forked)
        os.kill(server, number)
        wait_for("the signal", lambda: state_of(server) in ("Z", "T"))
        second = started(made)
        assert not isinstance(second.process, Forked) and SERVER.why.startswith("the fork server")
        assert is_gone(server) and SERVER.pid is None
        assert state_of(first.pid) in ("S", "R"), "what it has forked goes on"
        assert host.children(os.getpid()).count(first.pid) == 1


def in_a_command(program: str, *before: str) -> None:
    """Run a program in a process of one thread, from which a server can be forked, as a command is. `program` has the
    names of this file; `own` is a server that takes the place of SERVER."""
    lines = (
        "from tests.workers.test_fork_server import *",
        "from hogwild.workers.processes import handle as handle_module",
        "from hogwild.workers.processes.fork_server import ForkServer",
        "own = handle_module.SERVER = ForkServer()",
        *before,
        textwrap.dedent(program),
        "assert set(host.children(os.getpid())) <= {own.pid} | trackers(), 'a child is left'",
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
def test_an_exception_of_a_signals_handler_leaves_no_child_and_no_answer_for_the_next_one(error: str) -> None:
    in_a_command(
        f"""
        own.fork(kernels="")
        own._await_ready()
        receive = own._receive
        def interrupted(*arguments, **named):
            receive(*arguments, **named)
            raise {error}
        own._receive = interrupted
        with group() as made:
            with pytest.raises({error}):
                made._spawn_process(Role.READER, 0, 1)
            own._receive = receive
            assert set(host.children(os.getpid())) <= trackers()
            assert not isinstance(waiting(made).process, Forked)
        """
    )


def trackers() -> set[int]:
    from multiprocessing import resource_tracker

    return {getattr(resource_tracker._resource_tracker, "_pid", 0) or 0}  # type: ignore[attr-defined]


def test_a_machine_that_refuses_a_process_says_so() -> None:
    in_a_command(
        """
        def refuse(parent, descriptors, write):
            os.write(write, (-11).to_bytes(8, "little", signed=True))  # EAGAIN
            os._exit(0)
        between, fork_server._between = fork_server._between, refuse
        own.fork(kernels="")
        with group() as made, pytest.raises(BlockingIOError):
            made._spawn_process(Role.READER, 0, 1)
        assert own.pid is not None, "it may serve the next one"
        """
    )
    in_a_command(
        """
        def refuse():
            raise BlockingIOError
        os.fork = refuse
        own.fork(kernels="")
        with group() as made:
            assert not isinstance(waiting(made).process, Forked)
        assert own.why == "there is no fork server"
        """
    )


def test_a_child_that_cannot_take_over_the_surroundings_says_why() -> None:
    in_a_command(
        """
        def take_over(found):
            raise ValueError("not allowed to raise maximum limit")
        host.take_over = take_over
        own.fork(kernels="")
        with group() as made:
            handle = started(made)
            wait_for("its end", lambda: state_of(handle.pid) in ("Z", None))
            assert handle.last_output() == "ValueError: not allowed to raise maximum limit"
        """
    )


def test_the_start_of_a_fresh_interpreter_leaves_stop_signals_blocked() -> None:
    """That of multiprocessing's tracker, which comes with the first one, unblocks some (CPython #110844)."""
    host.stop_resource_tracker()
    with group(is_forked=False) as made, host.blocked_signals():
        started(made)
        assert set(host.CHILD_SIGNALS) <= signal.pthread_sigmask(signal.SIG_BLOCK, ())


# ---- hogwild.train ---------------------------------------------------------------------------------------------------


def trained(folder: Path, **settings: object) -> list[int]:
    """The processes of the workers, after a call."""
    torch.manual_seed(0)
    model, features = nn.Linear(4, 2), torch.randn(64, 4)
    data = TensorDataset(features, (features.sum(1) > 0).long())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"procs": 1, "epochs": 2, "batch_size": 8, "run_dir": folder} | settings
    result = hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, **given)  # type: ignore[arg-type]
    assert result.samples == 128
    events = (folder / "events.jsonl").read_text().splitlines()
    return [event["pid"] for event in map(json.loads, events) if event["event"] == "spawn"]


def test_all_calls_of_a_process_fork_from_one_server_and_each_process_runs_one_job(tmp_path: Path) -> None:
    assert SERVER.pid is None
    first = trained(tmp_path / "a")
    server = SERVER.pid
    second = trained(tmp_path / "b", procs=2)
    assert SERVER.pid == server is not None and len({*first, *second}) == 3
    assert all(map(is_gone, first + second))
    hogwild.close()
    hogwild.close()
    assert SERVER.pid is None and is_gone(server)


def is_sent(number: int) -> Callable[[int, pytest.MonkeyPatch], None]:
    def send(server: int, patch: pytest.MonkeyPatch) -> None:
        os.kill(server, number)
        wait_for("the signal", lambda: state_of(server) in ("Z", "T"))

    return send


@pytest.mark.parametrize(
    "change",
    [
        is_sent(signal.SIGKILL),
        is_sent(signal.SIGSTOP),
        lambda server, patch: patch.setenv("LD_BIND_NOW", "1"),
        lambda server, patch: patch.setattr(os, "getpriority", lambda which, who: 19),
    ],
    ids=["killed", "stopped", "another variable", "another niceness"],
)
def test_the_next_call_ends_a_server_that_was_lost_or_has_other_surroundings(
    change: Callable[[int, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    trained(tmp_path / "a")
    server = SERVER.pid
    assert server is not None
    change(server, monkeypatch)
    trained(tmp_path / "b")
    assert SERVER.pid != server and is_gone(server)
    if "another" in request.node.callspec.id:  # for one that was lost, fresh interpreters may do
        assert SERVER.pid is not None


def test_a_call_without_workers_starts_none(tmp_path: Path) -> None:
    trained(tmp_path / "inline", procs=0)
    assert SERVER.pid is None


def ended(folder: Path, program: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program, whose argument is a folder for its run."""
    (folder / "program.py").write_text(program)
    command, environment = [sys.executable, "program.py", "run"], os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == status and not {"Traceback", "leaked"} & set(done.stderr.split()), done.stderr
    return done


PROGRAM = """
import sys, os, signal
import torch
from torch import nn
from torch.utils.data import TensorDataset
import hogwild
from hogwild.workers.processes.fork_server import SERVER

model, data = nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, procs=1, epochs=1, run_dir=sys.argv[1])
print(SERVER.pid, flush=True)
{end}
"""


FORK = """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=print)
process.start()
process.join()
if not (child := os.fork()):
    hogwild.close()
    sys.exit(0)  # its own end waits for nobody, and says nothing
assert os.waitpid(child, 0)[1] == 0
os.kill(SERVER.pid, 0)  # it is the parent's, and still there
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(4)", 4), (FORK, 0)],
)
def test_it_does_not_outlive_the_caller_however_that_ends(end: str, status: int, tmp_path: Path) -> None:
    server = int(ended(tmp_path, PROGRAM.format(end=end), status).stdout.split()[-1])
    wait_for("its end", lambda: is_gone(server))


OF_A_CHILD = """
import multiprocessing, sys
import torch
import hogwild
from hogwild.data import Digits

def job():
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, Digits("test"), torch.nn.CrossEntropyLoss(), optimizer, procs=1, epochs=1, run_dir=sys.argv[1])

process = multiprocessing.get_context("fork").Process(target=job)
process.start()
process.join()
sys.exit(process.exitcode)
"""


def test_a_process_of_multiprocessing_that_has_trained_does_not_wait_for_it_at_its_end(tmp_path: Path) -> None:
    ended(tmp_path, OF_A_CHILD)


OF_SHARED_MEMORY = """
import sys
from multiprocessing.shared_memory import SharedMemory
import torch
from torch.utils.data import Dataset
import hogwild

class Shared(Dataset):
    def __init__(self, name):
        self.name = name
    def __len__(self):
        return 8
    def __getitem__(self, index):
        memory = SharedMemory(self.name)  # registers it with the tracker of this process, as Python does up to 3.12
        sample = torch.full((4,), float(memory.buf[index])), index % 2
        memory.close()
        return sample

if __name__ == "__main__":
    memory = SharedMemory(create=True, size=8)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"procs": 1, "epochs": 1, "batch_size": 4, "data": {"feed": "stream"}, "run_dir": sys.argv[1]}
    hogwild.train(model, Shared(memory.name), torch.nn.CrossEntropyLoss(), optimizer, **settings)
    SharedMemory(memory.name).close()
    memory.close()
    memory.unlink()
"""


def test_shared_memory_of_the_user_is_not_unlinked_by_the_tracker_of_a_worker(tmp_path: Path) -> None:
    ended(tmp_path, OF_SHARED_MEMORY)


# ---- a command -------------------------------------------------------------------------------------------------------


def test_a_commands_workers_are_its_children_and_hold_nothing_of_its_run(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    (tmp_path / "diary").mkdir()
    paced = (f"model.init_args.diary={tmp_path / 'diary'}", "model.init_args.pace_s=0.5", "train.exchange=direct")
    job = start_job(tmp_path / "job", COUNTING, "checkpoint.every_s=null", *paced)
    job.wait_for_event("ready", 2)
    workers = set(job.workers().values())
    wait_for("its server in the status", lambda: job.status()["server"])
    server = job.status()["server"]["pid"]  # a command that is a fork has another one, of tests/helpers/zygote.py
    assert server in host.children(job.process.pid) and host.process_name(server) == fork_server.SERVER_NAME
    assert {Path(f"/proc/{pid}/comm").read_text().strip() for pid in workers} == {CHILD_NAME}
    for pid in (*workers, server):
        held = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [one for one in held if f"{job.run_dir}/" in one and Path(one).parent.name not in ("logs", "stacks")]
    os.kill(server, signal.SIGKILL)
    os.kill(min(workers), signal.SIGKILL)
    job.wait_for_event("ready", 3)
    (tmp_path / "diary" / "hurry").touch()
    ended = job.wait()
    assert (ended.status, ended.summary["restarts"]) == (0, 1), ended.stderr
    assert ended.ledger_adds_up() and not ended.left_behind
