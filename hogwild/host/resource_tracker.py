"""multiprocessing's resource tracker: our child process, but started by multiprocessing. Exported by `hogwild.host`;
import it from there.

It is started with the first spawned child. We register nothing with it, but as our child, stopped or not, it must not
outlive us. From Python 3.12 on, the interpreter waits for it at exit, forever if it is stopped."""

import contextlib
import os
import select
import signal
from typing import Any


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
