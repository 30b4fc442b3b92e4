"""Background work for a loop that must not block: a copy, a merge, a file write. One task at a time; its end wakes a
poll, and the follow-up callback runs in the loop's own thread.

    begin(work, then) ──► [thread: work()] ── fileno() readable ──► settle(): then(what work returned)

The thread helps only if its long calls release the GIL, as torch operations, hashing and file I/O do; Python code
between them costs the loop one GIL hand-over each (`responsive`). Start it once, before the loop: `Thread.start` waits
until the new thread really runs."""

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
    """A worker thread owned by one thread, which makes all calls here. Work still running when the process ends is
    abandoned: call `wait` for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_busy = False  # from `submit` until its result is settled
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._ends: SimpleQueue[End] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, before a loop; otherwise the first `submit` does it."""
        if self._thread is None:
            given = (self._tasks, self._ends, self._descriptor)  # not `self`: the thread would keep it alive
            thread = threading.Thread(target=_serve, args=given, name=self.name, daemon=True)
            thread.start()
            self._thread = thread

    def submit(self, work: Callable[[], Answer], then: Callable[[Answer], None] = lambda _: None) -> None:
        """Run `work` in the thread; `finish` passes its result to `then`. Nobody may change its data meanwhile."""
        assert not self.is_busy, f"{self.name}: one piece of work at a time; settle the last one first"
        self.start()
        self.is_busy = True
        self._tasks.put((work, then))

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to settle."""
        return self._descriptor

    def finish(self) -> bool:
        """Call the follow-up if the work has ended, and return whether it has. Raises what the work raised."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return False
        self.is_busy = False
        self._ends.get()()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the work, then `finish`. Return False if it takes longer, or if there is no work."""
        if self.is_busy:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            poll.poll(None if timeout_s is None else timeout_s * 1000)
        return self.finish()

    def close(self) -> None:
        """End the thread and close the descriptor; with abandoned work, the thread does both when it finishes."""
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
        # Free it now, in this thread: freeing a gigabyte takes 0.1 s.
        del task
        ends.put(end)
        os.eventfd_write(descriptor, 1)
        del end
    os.close(descriptor)


def _done(work: Callable[[], Any], then: Callable[[Any], None]) -> End:
    try:
        answer = work()
    except BaseException as error:  # including exceptions of user code, from a model's own state
        return _raising(error)
    return lambda: then(answer)


def _raising(error: BaseException) -> End:
    # A function of its own: the traceback holds the frame of `_done`, and a cell there would make a reference cycle.
    def end() -> None:
        raise error

    return end


class _Collector:
    is_frozen = False


def freeze() -> None:
    """Leave all objects that exist out of garbage collection, for the rest of this process: with torch imported, a full
    collection takes 0.1 s."""
    gc.freeze()
    _Collector.is_frozen = True


@contextlib.contextmanager
def responsive() -> Iterator[None]:
    """Keep a loop responsive while threads work for it. Shorten the GIL switch interval from 5 ms to 0.5 ms, because a
    loop requests the GIL after every system call. Also freeze existing objects out of garbage collection: with torch
    imported, a full collection blocks every thread of the process for 0.1 s."""
    interval = sys.getswitchinterval()
    is_ours = not _Collector.is_frozen and gc.get_freeze_count() == 0  # it counts by walking over all of them
    sys.setswitchinterval(min(interval, HANDOVER_S))
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if is_ours:
            gc.unfreeze()
