"""Signals, as the supervisor and a worker take them. Offered by `host.py`; callers import that.

The one thing to know: a handler only notes the number. One that did more (log, set an Event, close a file) could
deadlock on a lock that the interrupted code holds."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from hogwild.errors import UsageError
from hogwild.host_tracker import ensure_resource_tracker

# Compared by name so that this module can still be imported where some do not exist.
STOP_SIGNALS = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP"))
CHILD_SIGNALS = tuple(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"))


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals
        return f"signal {number}"


class Interrupted(KeyboardInterrupt):
    """A signal that ends what runs at once. `number` says which."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal_name(number))


@contextlib.contextmanager
def raising_on_signals() -> Iterator[Callable[[], None]]:
    """While user code builds model and data, which may take long and cannot be resumed: a signal to stop ends it with
    `Interrupted`. A bare `except:` in user code may swallow that; the function given raises it again, and so does the
    end. Main thread only; elsewhere this does nothing."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise Interrupted(number)

    def look() -> None:
        if received:
            raise Interrupted(received.pop())

    if threading.current_thread() is not threading.main_thread():
        yield look
        return
    former = {n: signal.signal(n, interrupt) for n in STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield look
        look()
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def require_main_thread() -> None:
    """Raises UsageError elsewhere: only there are signals handled, and a worker dies with the thread that started
    it."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("training must be started from the main thread: signals and worker processes belong to it")


class SignalWatch:
    """In the supervisor, while a job runs: Ctrl-C and SIGTERM are only noted, and wake a poll on `fileno()`.

    `received` holds SIGINT or SIGTERM (SIGHUP counts as SIGTERM) in order of arrival, `received_at` their
    monotonic times. A handler that did more could deadlock on a lock the interrupted code holds. Main thread
    only."""

    def __init__(self, *, raises_second: bool = False) -> None:
        """`raises_second`: a second signal raises `Interrupted` where it arrives (`procs: 0`, where the code that may
        hang runs in this very thread)."""
        self.raises_second = raises_second
        self.received: list[int] = []
        self.received_at: list[float] = []
        self._former: dict[int, Any] = {}
        self._former_wakeup = -1
        self._read = self._write = -1

    def __enter__(self) -> "SignalWatch":
        require_main_thread()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Written to by the interpreter's C handler: a signal between our last look and the poll still ends
        # the poll.
        self._former_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            # nohup is respected; an ignored SIGINT (a background job of a script) is not: who sends it means
            # it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._former.clear()
        signal.set_wakeup_fd(self._former_wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.received:
            return  # a closing terminal may send several, kernel and shell one each: that is no second order
        self.received.append(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        self.received_at.append(time.monotonic())
        if self.raises_second and len(self.received) == 2:
            raise Interrupted(self.received[1])

    def fileno(self) -> int:
        """Readable after a signal, until `drain()`."""
        return self._read

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass


@contextlib.contextmanager
def blocked_signals(*numbers: int) -> Iterator[None]:
    """Around `Process.start()`: the child begins with these (by default every CHILD_SIGNALS) blocked, so that
    none can end it before `worker_signals` has set its handlers. Those sent to us meanwhile arrive at the
    end."""
    # Starting the resource tracker *unblocks* SIGINT and SIGTERM (CPython #110844), and `start()` starts it:
    # so before us.
    ensure_resource_tracker()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, numbers or CHILD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def worker_signals(on_terminate: Callable[[], None], stacks: int) -> None:
    """In a child, main thread: Ctrl-C and hang-up are the supervisor's business and ignored; SIGTERM calls
    `on_terminate`, which should only set a flag; SIGUSR1 and crashes write all stacks to the descriptor
    `stacks`, which must stay open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: on_terminate())
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)
