"""multiprocessing's resource tracker, a process of ours that somebody else starts. Offered by `host.py`; callers
import that.

It is started with the first spawned child. We register nothing with it, but it is our child, and none of ours,
stopped or not, may outlive us. From Python 3.12 on, the interpreter waits for it at exit, for ever if it is stopped.
"""

import contextlib
import os
import select
import signal
from typing import Any

from hogwild.host.processes import is_stopped


def is_tracker_known() -> bool:
    """Somebody in this process has started it before."""
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    return tracker._pid is not None


def ensure_resource_tracker() -> None:
    """Starts it, also after somebody killed it, which multiprocessing by itself would warn about, or stopped it: with
    every child it is written to, and a pipe that nobody reads is full after some thousand of them."""
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    if tracker._pid is not None and (not _is_live_child(tracker._pid) or is_stopped(tracker._pid)):
        stop_resource_tracker()
    resource_tracker.ensure_running()


def stop_resource_tracker(timeout_s: float = 2.0) -> bool:
    """Kills and reaps the tracker of this process, also a stopped or dead one; multiprocessing starts a new
    one when it needs one. True when none of ours is left. What others registered with it (semaphores, named
    shared memory) is not unlinked."""
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    if not tracker._lock.acquire(timeout=timeout_s):
        return False
    try:
        pid, pipe = tracker._pid, tracker._fd
        if pid is None:  # none, or that of our parent, whose pipe we inherited
            return True
        tracker._pid = tracker._fd = None
    finally:
        tracker._lock.release()
    if pipe is not None:
        os.close(pipe)
    return _kill_and_reap(pid, timeout_s)


def _is_live_child(pid: int) -> bool:
    """False when it is dead, reaped or not. While a child is unreaped its number cannot pass to a
    stranger."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _kill_and_reap(pid: int, timeout_s: float) -> bool:
    """For a direct child; True when it is gone."""
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
