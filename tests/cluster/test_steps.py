"""SIGKILL of a communicator, and of its whole node, at every step of a round: its main thread is stopped at a system
call and killed there (`tests/faults/tracing.py`).

    notes of all -> NOTED told -> sums -> word BUFFERED -> barrier -> word COMMITTED -> COMMITTED told

The two words lie in the memory that it shares with its supervisor: they say where in a round a call is."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hogwild.cluster.members import WORDS, RoundWord
from tests.cluster.running import Nodes, assert_each_once, counting
from tests.faults.tracing import Call, Traced, why_not
from tests.helpers.processes import IS_THOROUGH, PATIENCE_S, NeverHappened

pytestmark = pytest.mark.processes
thorough = pytest.mark.skipif(not IS_THOROUGH, reason="make stress")

SEND, WAIT = "call-46", "call-202"  # sendmsg: to the supervisor, or of gloo; futex: for a thread of gloo


@pytest.fixture(autouse=True)
def _traced() -> None:
    if why := why_not():
        pytest.skip(why)


@dataclass(frozen=True, slots=True)
class Stand:
    """The words at the moment of a call."""

    buffered: int
    committed: int


class Stopped:
    """The main thread of a communicator, at a system call. `first`: the words when it was seized."""

    def __init__(self, pid: int) -> None:
        self.thread = Traced.seize(pid)
        self._words = os.open(_words_of(pid), os.O_RDONLY)
        self.first = self.stand()

    def stand(self) -> Stand:
        words = memoryview(os.pread(self._words, 8 * WORDS, 0)).cast("q")
        return Stand(words[RoundWord.BUFFERED], words[RoundWord.COMMITTED])

    def run_to(self, is_there: Callable[["Stopped", Call], bool]) -> None:
        """Run to the entry of the first call of which `is_there` is true."""
        until_s = time.monotonic() + PATIENCE_S
        while (call := self.thread.next_call()) is not None:
            if is_there(self, call):
                return
            if time.monotonic() > until_s:
                raise NeverHappened(f"no such call of thread {self.thread.thread} in {PATIENCE_S:g} s")
        raise AssertionError(f"thread {self.thread.thread} has ended by itself")

    def kill(self, others: tuple[psutil.Process, ...] = ()) -> None:
        """Kill it here, and others before it: it does nothing meanwhile."""
        for other in others:
            other.send_signal(signal.SIGKILL)
        self.thread.kill()
        os.close(self._words)

    def says(self, call: Call, kind: str) -> bool:
        """Return whether the call sends the supervisor a parcel of this kind."""
        if call.name != SEND:
            return False
        message = _numbers(self.thread.memory(call.arguments[1], 56))  # msghdr
        pieces = _numbers(self.thread.memory(message[2], 16 * message[3]))  # iovec: address, length
        text = b"".join(self.thread.memory(at, size) for at, size in zip(pieces[::2], pieces[1::2], strict=True))
        return f'"kind": "{kind}"'.encode() in text


def _numbers(content: bytes) -> list[int]:
    return memoryview(content).cast("Q").tolist()


def _words_of(pid: int) -> str:
    folder = f"/proc/{pid}/fd"
    return next(
        f"{folder}/{number}" for number in os.listdir(folder) if "hogwild-words" in os.readlink(f"{folder}/{number}")
    )


# ---- the steps ------------------------------------------------------------------------------------------------------


def before_noted(at: Stopped) -> None:
    """The notes of all are there, and the supervisor does not know them."""
    at.run_to(lambda here, call: here.says(call, "noted"))


def after_noted(at: Stopped) -> None:
    """The supervisor knows the notes; sums are being made."""
    before_noted(at)
    at.thread.complete()


def among_the_sums(at: Stopped) -> None:
    after_noted(at)
    at.run_to(lambda _, call: call.name == WAIT)


def before_the_barrier(at: Stopped) -> None:
    """BUFFERED is written; the barrier is not yet asked for, or on its way."""
    at.run_to(lambda here, _: here.stand().buffered > here.stand().committed)


def after_the_barrier(at: Stopped) -> None:
    """The barrier is passed, and COMMITTED is not written."""
    at.run_to(lambda here, call: call.name == WAIT and here.stand().buffered > here.stand().committed)
    at.thread.complete()


def before_committed_is_told(at: Stopped) -> None:
    """COMMITTED is written; the supervisor has not heard of it."""
    at.run_to(lambda here, call: here.says(call, "committed"))
    assert at.stand().committed > at.first.committed


def after_committed_is_told(at: Stopped) -> None:
    before_committed_is_told(at)
    at.thread.complete()


STEPS = (
    before_noted,
    after_noted,
    among_the_sums,
    before_the_barrier,
    after_the_barrier,
    before_committed_is_told,
    after_committed_is_told,
)


def at_call(number: int) -> Callable[[Stopped], None]:
    """Return the step "at its `number`-th system call from now", wherever that is."""

    def step(at: Stopped) -> None:
        for _ in range(number):
            at.run_to(lambda *_: True)

    step.__name__ = f"call {number}"
    return step


def random_calls(seed: int, count: int) -> list[Callable[[Stopped], None]]:
    """Return some system calls of the next few rounds; a round has some dozens."""
    return [at_call(number) for number in random.Random(seed).sample(range(1, 200), count)]


# ---- kills ----------------------------------------------------------------------------------------------------------


def patient(folder: Path) -> Nodes:
    return counting(folder, "supervise.max_restarts=1000", pace_s=0.5)


def kill_communicators(folder: Path, steps: list[Callable[[Stopped], None]]) -> None:
    with patient(folder) as job:
        job.wait_for_round(2)
        for number, step in enumerate(steps):
            node = number % 2
            stopped = Stopped(job.communicator(node).pid)
            step(stopped)
            stopped.kill()
            for each in (0, 1):
                job.wait_for_event(each, "cluster-formed", count=number + 1)
            job.wait_for_more_rounds(2)
        job.hurry()
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        for node in (0, 1):
            assert job.summary(node)["cluster"]["lost"] == 0
        assert job.summary(0)["leases"] == job.summary(1)["leases"]
        assert sum(len(job.events(node, "communicator-exit")) for node in (0, 1)) == len(steps)


@thorough
def test_a_communicator_is_killed_around_the_commit_of_a_round_and_nothing_is_lost_or_counted_twice(
    tmp_path: Path,
) -> None:
    kill_communicators(tmp_path, [after_the_barrier, before_committed_is_told])


@thorough
def test_a_communicator_is_killed_at_every_step_on_either_node(tmp_path: Path) -> None:
    kill_communicators(tmp_path, [*STEPS, *STEPS])  # their number is odd: each node has each step


@thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_communicator_is_killed_at_any_system_call(tmp_path: Path, seed: int) -> None:
    kill_communicators(tmp_path, random_calls(seed, 10))


@thorough
@pytest.mark.parametrize("step", [*STEPS, *random_calls(7, 5)], ids=lambda step: step.__name__)
def test_a_node_is_killed_at_a_step_of_its_communicator_and_the_other_finishes(
    tmp_path: Path, step: Callable[[Stopped], None]
) -> None:
    with patient(tmp_path) as job:
        job.wait_for_round(2)
        stopped = Stopped(job.communicator(1).pid)
        step(stopped)
        pid = stopped.thread.thread
        stopped.kill(tuple(process for process in job.processes_of(1) if process.pid != pid))
        job.hurry()
        assert job.wait_for_end(0)["state"] == "succeeded"
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 1
