"""The fork server's steps, each with a name, and a fault at one of them: a process is killed or stopped just there.

    PROCESS:FUNCTION+LINE   such as `server:_forked+4`: the fifth line of `_forked`, in the server; of the files in
                            TRACED, as far as a launch comes through them (`record` finds the names)
    process                 supervisor (its fork of the server, its launches) │ server │ between │ child
    victim                  the server or the supervisor, whoever is at the step; or the process at the step itself

A trace function (sys.settrace) strikes, so the product has no hooks. `python -m tests.faults.fork_points` does it
without a job: for each fault it forks a supervisor, which forks a server and starts LAUNCHES processes through it;
afterwards each of them is there, and nothing else is. `with_fault`: the same in a real command."""

import argparse
import json
import mmap
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from hogwild import host
from hogwild.host import surroundings
from hogwild.planning.cpu_plan import plan_here
from hogwild.workers.child import entry
from hogwild.workers.processes import fork_server, handle
from hogwild.workers.processes.fork_server import SERVER, Forked, ForkServer
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Role
from tests.helpers.processes import state_of

TRACED = {module.__file__ for module in (fork_server, surroundings, handle)}
PROCESSES = SUPERVISOR, SERVED, BETWEEN, CHILD = "supervisor", "server", "between", "child"
BEGINS = {
    "_detached": SERVED,
    "_serve": SERVED,
    "_between": BETWEEN,
    "_become": CHILD,
}  # function of fork_server.py -> whose first it is
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LAUNCHES = 2
HANG_S, ORPHANS_S = 60.0, 4.0  # less than a fork waits for its parent


@dataclass(frozen=True, slots=True)
class Fault:
    """`launch`: which one of the command, from 1; 0: before the first."""

    point: str
    launch: int
    victim: str
    signal: str

    def __str__(self) -> str:
        return f"{self.signal} {self.victim} at {self.point}, launch {self.launch}"

    @property
    def is_possible(self) -> bool:
        """A stopped supervisor is a matter of other tests; it is no parent of the process between, and before the
        first launch it does not know its server."""
        at = self.point.partition(":")[0]
        if (self.victim, at, self.launch) == (SERVED, SUPERVISOR, 0):
            return False
        if self.victim == SUPERVISOR:
            return self.signal == "kill"
        return self.victim in (SERVED, at)


class Tracer:
    """Follows this process and those it forks, and strikes once; then there is a file `record`. Without a fault it
    writes the names of all points there."""

    def __init__(self, fault: Fault | None, record: Path | None = None) -> None:
        self._fault, self._record = fault, record
        self._process, self._supervisor, self._server, self._launch = SUPERVISOR, 0, 0, 0
        self._seen = set[str]()
        self._shared = mmap.mmap(-1, 2)  # number of the launch, whether it has struck

    @property
    def has_struck(self) -> bool:
        return bool(self._shared[1])

    def install(self) -> None:
        """Trace the fork of the server and every launch from now on."""
        fork, spawn = ForkServer.fork, Handle.spawn
        self._supervisor = os.getpid()

        def traced_fork(server: ForkServer, **given: Any) -> None:
            with self._traced():
                fork(server, **given)

        def traced_spawn(*given: Any, **more: Any) -> Handle:
            self._shared[0] = self._launch = self._launch + 1
            self._server = SERVER.pid or 0
            with self._traced():
                return spawn(*given, **more)

        ForkServer.fork = traced_fork  # type: ignore[method-assign]
        Handle.spawn = traced_spawn  # type: ignore[method-assign]

    @contextmanager
    def _traced(self) -> Iterator[None]:
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code is entry.main.__code__:
            sys.settrace(None)
        if code.co_filename not in TRACED:
            return None
        if code.co_filename == fork_server.__file__ and code.co_name in BEGINS:
            self._process = BEGINS[code.co_name]
            self._server = os.getpid() if self._process == SERVED else self._server
        if code is fork_server._forked.__code__:  # until then it is with the launch before, however far others are
            self._launch = self._shared[0]  # a process that it forks stays with that
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            offset = frame.f_lineno - frame.f_code.co_firstlineno
            self._reach(f"{self._process}:{frame.f_code.co_name}+{offset}")
        return self._line

    def _reach(self, point: str) -> None:
        launch = self._launch
        fault = self._fault
        if fault is None and self._record is not None:
            name = f"{launch} {point}\n"
            if name not in self._seen:
                self._seen.add(name)
                with self._record.open("a") as file:  # the server has closed all descriptors
                    file.write(name)
        if fault is None or self.has_struck or fault.launch != launch or fault.point != point:
            return
        victims = {SUPERVISOR: self._supervisor, SERVED: self._server}
        if (victim := victims.get(fault.victim, os.getpid())) > 0:
            self._shared[1] = 1
            if self._record is not None:
                self._record.touch()
            os.kill(victim, SIGNALS[fault.signal])


# ---- without a job --------------------------------------------------------------------------------------------------


def supervise(tracer: Tracer, answer: int) -> None:
    """A supervisor: fork the server, start processes through it, end them; say what was wrong."""
    wrong: list[str] = []
    read, write = os.pipe()
    tracer.install()
    SERVER.fork(kernels="")
    environment, handles = plan_here(1, 1).environment, list[Handle]()
    for number in range(LAUNCHES):
        try:
            given = {"lifeline": read, "environment": environment, "is_forked": True}
            handles.append(Handle.spawn(Role.READER, number, 1, **given))
        except Exception as error:
            wrong.append(f"launch {number + 1} raised {error!r}")
    for one in handles:
        _await(one)
    known = {one.pid for one in handles} | {SERVER.pid}
    for one in handles:
        one.kill()
        host.wait_readable([one.pidfd], HANG_S * 1000)
        if one.reap() is None:
            wrong.append(f"{one.title} is not our child")
        else:
            one.close()
    SERVER.close()
    host.stop_resource_tracker()
    wrong += [f"an unknown child: {host.process_name(pid)} {pid in known}" for pid in host.children(os.getpid())]
    for descriptor in (read, write):
        os.close(descriptor)
    os.write(answer, json.dumps(wrong).encode())


def _await(one: Handle) -> None:
    """Until a fork works, has ended, or was stopped. A fresh interpreter is one, and is not waited for."""
    if not isinstance(one.process, Forked):
        return
    from hogwild.workers.processes.fork_trial import (
        give_nothing_to_read,  # with numpy, whose threads could not be forked
    )

    give_nothing_to_read(one)
    until = time.monotonic() + HANG_S
    while not one.is_ready and state_of(one.pid) not in ("Z", "T", None):
        host.wait_readable([one.pidfd, one.channel.fileno()], 20)
        one.listen()
        assert time.monotonic() < until, f"{one.title} is not there"


def strike(fault: Fault | None, record: Path | None = None) -> tuple[bool, list[str]]:
    """Whether the fault was injected, and what was wrong afterwards. This process has one thread and adopts orphans."""
    tracer = Tracer(fault, record)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(read)
        status = 1
        try:
            supervise(tracer, write)
            status = 0
        except BaseException as error:
            os.write(write, json.dumps([repr(error)]).encode())
        finally:
            os._exit(status)
    os.close(write)
    wrong = []
    with open(read, "rb") as answer:
        pidfd = os.pidfd_open(pid)
        if not host.wait_readable([pidfd], HANG_S * 1000):
            wrong.append(f"hangs: {[str(one) for one in host.kernel_threads(pid)]}")
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)
        os.waitpid(pid, 0)
        orphans = _orphans(ORPHANS_S)
        wrong += [f"orphan: {words}" for words in orphans]
        if not (fault is not None and fault.victim == SUPERVISOR and tracer.has_struck):
            wrong += json.loads(answer.read() or '["it said nothing"]')
    return tracer.has_struck, wrong


def _orphans(within_s: float) -> list[str]:
    """Return the remains of a supervisor after a while, and kill it."""
    until, found = time.monotonic() + within_s, list[int]()
    while True:
        while host.children(os.getpid()) and os.waitpid(-1, os.WNOHANG)[0]:
            pass
        found = host.children(os.getpid(), recursive=True)
        if not found or time.monotonic() > until:
            break
        time.sleep(0.005)
    words = [f"{host.process_name(pid)} {state_of(pid)}: {host.command_line(pid)[:80]}" for pid in found]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    while host.children(os.getpid()):
        os.waitpid(-1, 0)
    return words


def points(folder: Path) -> list[tuple[int, str]]:
    """Every (launch, point) of an undisturbed supervisor, in the order they come."""
    file = folder / "points"
    _, wrong = strike(None, file)
    assert not wrong, wrong
    found = [(int(launch), point) for launch, point in (line.split() for line in file.read_text().splitlines())]
    assert {point.partition(":")[0] for _, point in found} == {*PROCESSES}
    return found


def faults(found: list[tuple[int, str]]) -> list[Fault]:
    every = [Fault(point, launch, victim, how) for launch, point in found for victim in PROCESSES for how in SIGNALS]
    return [fault for fault in every if fault.is_possible]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="only each of so many faults")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--list", action="store_true", help="inject none")
    given = parser.parse_args()
    import hogwild.workers.child.build  # noqa: F401 - torch

    assert host.thread_count() == 1, "OPENBLAS_NUM_THREADS=1, please"
    surroundings.ctypes.CDLL(None).prctl(surroundings.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with TemporaryDirectory() as folder:
        drawn = [fault for fault in faults(points(Path(folder))) if given.only in str(fault)]
    if given.list:
        print(json.dumps([asdict(fault) for fault in drawn]))
        return 0
    Random(given.seed).shuffle(drawn)
    struck, violations, seconds = 0, list[str](), list[tuple[float, str]]()
    for fault in drawn[:: given.every]:
        began_s = time.monotonic()
        was_struck, wrong = strike(fault)
        struck += was_struck
        seconds.append((round(time.monotonic() - began_s, 2), str(fault)))
        violations += [f"{fault}: {words}" for words in wrong]
        if wrong:
            print(violations[-1], file=sys.stderr, flush=True)
    answer = {"faults": len(drawn[:: given.every]), "struck": struck, "violations": violations}
    print(json.dumps({**answer, "slowest": sorted(seconds)[-5:]}))
    return bool(violations)


def command(fault: str, mark: str, argv: list[str]) -> None:
    """Run a program of ours as `python ARGV` does, with a fault in it; once it has struck there is a file `mark`."""
    Tracer(Fault(**json.loads(fault)), Path(mark)).install()
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


def with_fault(fault: Fault, mark: Path, program: str) -> tuple[str, ...]:
    """Return the arguments of an interpreter that runs this program with the fault."""
    return ("-m", "tests.faults.fork_points", "--command", json.dumps(asdict(fault)), str(mark), program)


if __name__ == "__main__":
    if sys.argv[1] == "--command":
        command(*sys.argv[2:4], sys.argv[4:])
    else:
        sys.exit(main())
