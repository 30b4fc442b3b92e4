"""Signal handling for a command, the supervisor and a worker. Exported by `hogwild.host`; import it from there, except
in the first lines of a command, before heavy imports.

The one thing to know: a handler only notes the number. A handler that does more (log, set an Event, close a file) could
deadlock on a lock that the interrupted code holds.

    the imports of a command      StopSignals, ENDS      noted; acted on after the import
    a job file, user code         StopSignals, RAISES    `Interrupted`, where it arrives
    the hand-over                 StopSignals, NOTES     noted, and taken over by the watch
    a job, from 'start' to 'end'  SignalWatch            noted: checkpoint and stop

multiprocessing's resource tracker is a child process that it starts with the first spawned child. We register nothing
with it, but as our child, stopped or not, it must not outlive us. From Python 3.12 on, the interpreter waits for it at
exit, forever if it is stopped."""

import contextlib
import enum
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from hogwild.errors import UsageError

# Compared by name, so that this module can be imported on systems that lack some of them.
NOTICES = tuple(s for s in signal.Signals if s.name in ("SIGUSR1", "SIGUSR2"))  # a scheduler's, before its time limit
STOP_SIGNALS = (*(s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP")), *NOTICES)
CHILD_SIGNALS = STOP_SIGNALS


def signal_name(number: int) -> str:
    """Return `SIGTERM` for 15; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals
        return f"signal {number}"


class Interrupted(KeyboardInterrupt):
    """A signal that ends the current work at once; `number` is the signal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal_name(number))


def give_back(former: dict[int, Any]) -> None:
    """Restore the previous handlers and clear the dict. A handler set by C code, which Python reports as None, becomes
    the default."""
    for number, handler in former.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    former.clear()


def _is_the_callers(number: int) -> bool:
    """Return whether the program that called us handles a scheduler's notice itself (submitit does)."""
    handler = signal.getsignal(number)
    return number in NOTICES and callable(handler) and not isinstance(getattr(handler, "__self__", None), StopSignals)


class Manner(enum.Enum):
    """The reaction of `StopSignals` to a signal."""

    NOTES = enum.auto()  # record only: cleanup and hand-over must not be interrupted
    ENDS = enum.auto()  # record the first; the second ends the process at once, silently
    RAISES = enum.auto()  # raise and record: user code may swallow the exception


class StopSignals:
    """Stop signals while no worker runs. There is one handler, and one assignment changes its reaction, so that no
    signal is lost in between.

    Nothing is raised during heavy imports: the nested imports of numpy and torch swallow the exception and continue
    half imported. Seen: `module 'numpy' has no attribute 'matrix'`, blamed on the user's class; a job that trained to
    its end; an abort in pybind11. `received` holds numbers in order of arrival. Main thread only."""

    def __init__(self) -> None:
        self.manner = Manner.NOTES
        self.received: list[int] = []
        self.before_exit: Callable[[], None] = lambda: None
        self._former: dict[int, Any] = {}

    @property
    def is_installed(self) -> bool:
        return bool(self._former)

    def install(self) -> None:
        """Install the handler for every stop signal that is not ignored (nohup, background jobs of scripts)."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN and not _is_the_callers(number):
                self._former[number] = signal.signal(number, self._note_signal)

    def restore(self) -> None:
        give_back(self._former)

    def look(self) -> None:
        """Raise `Interrupted` if a signal was noted. Call it after an import, or after user code that may have
        swallowed it."""
        if self.received:
            raise Interrupted(self.received[0])

    def hand_over(self) -> None:
        """Raise a signal that came before now; a `SignalWatch` takes those that come later."""
        self.manner = Manner.NOTES
        self.look()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        if self.manner is Manner.RAISES:
            self.received.append(number)
            raise Interrupted(number)
        if self.received and number not in (signal.SIGINT, signal.SIGTERM):
            return  # as in SignalWatch
        if self.received and self.manner is Manner.ENDS:
            try:
                self.before_exit()
            finally:
                os._exit(128 + number)  # exit functions of half-imported modules would only print errors
        self.received.append(number)


_command = StopSignals()  # installed only in our own command's process, never in a library caller's


def note_signals() -> None:
    """Note signals from now on, for `raise_noted`; a second signal ends the process with status 128 + its number. The
    first call of a command, valid for the rest of its process."""
    if not _command.is_installed:
        _command.install()
    end_at_second()


def raise_noted() -> None:
    """Raise `Interrupted` for a signal that the command has noted, after an import."""
    _command.look()


def before_exit(action: Callable[[], None]) -> None:
    """Call `action` before a second signal ends the process; an action must take no lock, and replaces the last one."""
    _command.before_exit = action


def end_at_second() -> None:
    """Let a second signal end the process: the command is over and only exit functions still run."""
    _command.manner = Manner.ENDS


@contextlib.contextmanager
def raising_on_signals() -> Iterator[StopSignals]:
    """Let stop signals raise `Interrupted`, also one noted before. For slow work that cannot be resumed: user code that
    builds model and data, reading a pipe. User code may swallow the exception, so the end checks again; an error after
    a signal counts as its consequence, because an interrupted import fails somewhere else. Restores a library caller's
    handlers, and re-raises for them a signal that came after `hand_over` and nobody took. Main thread only; in other
    threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()
        return
    is_ours = _command.is_installed
    stops = _command if is_ours else StopSignals()
    manner = stops.manner
    try:
        if not is_ours:
            stops.install()
        stops.manner = Manner.RAISES
        stops.look()
        yield stops
        if stops.manner is Manner.RAISES:
            stops.look()
        stops.manner = manner
    except BaseException as error:
        is_broken_off = stops.manner is Manner.RAISES and bool(stops.received)
        stops.manner = Manner.NOTES  # until cleanup is done
        if is_broken_off and not isinstance(error, Interrupted):
            raise Interrupted(stops.received[0]) from error
        raise
    finally:
        if not is_ours:
            stops.restore()
    if not is_ours and stops.received:
        signal.raise_signal(stops.received[0])


def require_main_thread() -> None:
    """Raise UsageError in any other thread: only the main thread handles signals, and workers die with the thread that
    started them."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "training must be started from the main thread, which handles signals and worker processes",
            code="usage/main-thread",
        )


class SignalWatch:
    """Signals in the supervisor while a job runs: Ctrl-C and SIGTERM are only noted, and wake a poll on `fileno()`.

    `received` holds SIGINT, SIGTERM (SIGHUP counts as SIGTERM) or, as the first, a notice, in order of arrival;
    `received_at` their monotonic times. Main thread only."""

    def __init__(self, *, raises_second: bool = False, before: StopSignals | None = None) -> None:
        """`raises_second`: a second signal raises `Interrupted` where it arrives (`procs: 0`, where code that may hang
        runs in this very thread). `before`: the previous owner of the signals; what it noted is taken over."""
        self.raises_second = raises_second
        self._before = before
        self.received: list[int] = []
        self.received_at: list[float] = []
        self._former: dict[int, Any] = {}
        self._former_wakeup = -1
        self._read = self._write = -1

    def __enter__(self) -> "SignalWatch":
        require_main_thread()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Written by the interpreter's C handler, so that a signal between our last check and the poll still ends the
        # poll.
        self._former_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            # nohup is respected. An ignored SIGINT (background job of a script) is not: whoever sends it means it.
            is_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
            if not is_nohup and not _is_the_callers(number):
                self._former[number] = signal.signal(number, self._note_signal)
        if self._before is not None:
            noted, self._before.received = self._before.received, []
            for one in noted:
                self._note(one)
        return self

    def __exit__(self, *_: object) -> None:
        give_back(self._former)
        signal.set_wakeup_fd(self._former_wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._note(number)
        if self.raises_second and len(self.received) == 2:
            raise Interrupted(self.received[1])

    def _note(self, number: int) -> None:
        if self.received and number not in (signal.SIGINT, signal.SIGTERM):
            return  # a closing terminal or a scheduler may send several, to us and to a shell: not a second order
        if self.received and self.received[-1] in NOTICES and number == signal.SIGTERM:
            self.received[-1] = number  # the time limit itself, after its notice: a checkpoint may be half written
            return
        self.received.append(signal.SIGTERM if number == signal.SIGHUP else number)
        self.received_at.append(time.monotonic())

    def fileno(self) -> int:
        """Return a descriptor that is readable from a signal until `drain()`."""
        return self._read

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass


@contextlib.contextmanager
def blocked_signals(*numbers: int) -> Iterator[None]:
    """Block these signals (by default all CHILD_SIGNALS) around `Process.start()`: the child starts with them blocked,
    so that none can kill it before `worker_signals` has set its handlers. Signals sent to us meanwhile arrive at the
    end."""
    # Starting the resource tracker *unblocks* SIGINT and SIGTERM (CPython #110844), and every start of a process needs
    # it, to pass it on; so start it before.
    ensure_resource_tracker()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, numbers or CHILD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def leave_signals_to_main() -> None:
    """Block the stop signals in the calling thread, for its life: else it would take those that the main thread has
    blocked for a moment (`blocked_signals`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def worker_signals(on_terminate: Callable[[], None], stacks: int) -> None:
    """Set a child's handlers, in its main thread. Ctrl-C, hang-up and SIGUSR2, which a scheduler may send to all
    processes of a job, are ignored, because the supervisor handles them; SIGTERM calls `on_terminate`, which should
    only set a flag; SIGUSR1 and crashes write all stacks to the descriptor `stacks`, which must stay open."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: on_terminate())
    write_stacks_to(stacks)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_SIGNALS)


def write_stacks_to(stacks: int) -> None:
    """Write all stacks to that descriptor on SIGUSR1 and crashes; it must stay open."""
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)


def _tracker() -> Any:
    from multiprocessing import resource_tracker

    return resource_tracker._resource_tracker


def is_tracker_known() -> bool:
    """Return whether it has been started in this process."""
    return _tracker()._pid is not None


def ensure_resource_tracker() -> None:
    """Start the tracker. Restart it if it was killed (multiprocessing would warn) or stopped: every new child writes to
    its pipe, and without a reader the pipe is full after some thousand children."""
    from hogwild.host.processes import is_stopped  # with psutil, which a command that only prints does without

    tracker = _tracker()
    # Without its number it is our parent's, whose pipe we inherited: `ensure_running` asks whether it is alive.
    if tracker._pid is not None and (not _is_live_child(tracker._pid) or is_stopped(tracker._pid)):
        stop_resource_tracker()
    tracker.ensure_running()


def stop_resource_tracker(timeout_s: float = 2.0) -> bool:
    """Kill and reap the tracker of this process, also a stopped or dead one; multiprocessing starts a new one when it
    needs it. Return True if we have none left. Objects that other code registered with it (semaphores, named shared
    memory) are not unlinked."""
    tracker = _tracker()
    if not tracker._lock.acquire(timeout=timeout_s):
        return False
    try:
        pid, pipe = tracker._pid, tracker._fd
        if pid is None:  # none, or our parent's, whose pipe we inherited
            return True
        tracker._pid = tracker._fd = None
    finally:
        tracker._lock.release()
    if pipe is not None:
        os.close(pipe)
    return kill_and_reap(pid, timeout_s)


def _is_live_child(pid: int) -> bool:
    """Return False if it is dead, reaped or not. The number of an unreaped child cannot be reused."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def kill_and_reap(pid: int, timeout_s: float) -> bool:
    """Kill and reap a direct child; return True when it is gone."""
    if _is_live_child(pid):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                return False
        finally:
            os.close(pidfd)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return True
