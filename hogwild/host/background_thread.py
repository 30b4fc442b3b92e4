"""Work in a thread, for a loop that must not wait for it: a copy, a merge, a file. One piece at a time; its end wakes a
poll, and what follows from it is done in the thread of the loop.

    begin(work, then) ──► [thread: work()] ── fileno() readable ──► settle(): then(what work returned)

The thread helps only where its long calls release the interpreter lock, as torch's operations, hashes and files do;
what is left between them costs the loop a hand-over each (`responsive`). It is started once, before the loop: who
starts a thread waits until the machine has let it begin."""

import contextlib
import gc
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

HANDOVER_S = 0.0005

Answer = TypeVar("Answer")
End = Callable[[], None]
Task = tuple[Callable[[], Any], Callable[[Any], None]]


class Background:
    """Owned by one thread, which calls everything here. What is still being done when the process ends is given up:
    `wait` for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_busy = False  # from `begin` until its end was settled
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._ends: SimpleQueue[End] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Before a loop; otherwise the first `begin` does it."""
        if self._thread is None:
            given = (self._tasks, self._ends, self._descriptor)  # not `self`, which could not be forgotten then
            self._thread = threading.Thread(target=_serve, args=given, name=self.name, daemon=True)
            self._thread.start()

    def begin(self, work: Callable[[], Answer], then: Callable[[Answer], None] = lambda _: None) -> None:
        """`then` gets what `work` returned, from `settle`. Nobody may change what `work` uses meanwhile."""
        assert not self.is_busy, f"{self.name}: one piece of work at a time; settle the last one first"
        self.start()
        self.is_busy = True
        self._tasks.put((work, then))

    def fileno(self) -> int:
        """Readable when there is something to settle."""
        return self._descriptor

    def settle(self) -> bool:
        """If the work is over, does what follows from it, here, and answers True. Raises what the work raised."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return False
        self.is_busy = False
        self._ends.get()()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """The same, but waits for the end of the work; False when it takes longer, or when there is none."""
        if self.is_busy:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            poll.poll(None if timeout_s is None else timeout_s * 1000)
        return self.settle()

    def close(self) -> None:
        """Ends the thread and gives the descriptor back; of work that was given up, when it is done."""
        self._give_up()
        if self._thread is not None and not self.is_busy:
            self._thread.join()

    def __del__(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0 and self._thread is None:
            os.close(descriptor)
        elif descriptor >= 0:
            self._tasks.put(None)


def _serve(tasks: "SimpleQueue[Task | None]", ends: "SimpleQueue[End]", descriptor: int) -> None:
    while (task := tasks.get()) is not None:
        end = _done(*task)
        # Here and now, in this thread: a gigabyte takes a tenth of a second to be given back.
        del task
        ends.put(end)
        os.eventfd_write(descriptor, 1)
        del end
    os.close(descriptor)


def _done(work: Callable[[], Any], then: Callable[[Any], None]) -> End:
    try:
        answer = work()
    except BaseException as error:  # also what user code raises in a model's own state
        return _raising(error)
    return lambda: then(answer)


def _raising(error: BaseException) -> End:
    def end() -> None:
        raise error

    return end


@contextlib.contextmanager
def responsive() -> Iterator[None]:
    """Around a loop that has work done in threads. A thread that asks for the interpreter lock gets it from one that
    computes in Python after half a millisecond; by default it waits for five, and a loop asks in every system call. And
    what exists by now is not looked through for garbage meanwhile: with torch imported that holds up every thread of
    this process for a tenth of a second."""
    interval, is_ours = sys.getswitchinterval(), gc.get_freeze_count() == 0
    sys.setswitchinterval(min(interval, HANDOVER_S))
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if is_ours:
            gc.unfreeze()
