"""Processes that wait for the caller's next job: the second `hogwild.train` of a process needs no import of torch.

    a job of hogwild.train has ended ── keep: new processes ── import torch, wait ──► take: the next job's processes
                                                                '── IDLE_S ──► killed, as by `close` and at exit

Each is new: it runs one job's code and ends with it. One is taken only for the environment, sys.path, threads, cores
and user that it was started with. They end with the caller, however it ends: of their lifeline only the caller has the
other end, which stays open, as a process that was taken still watches it. multiprocessing does not know them until they
are taken: it would wait for them at the end of a process. The command line keeps none."""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from hogwild import host
from hogwild.errors import HogwildError
from hogwild.planning.cpu_plan import Plan
from workers.processes.handle import POLL_MS, REAP_S, Handle, reaped

IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything a process keeps from its start, which a later task cannot change."""

    planned: Mapping[str, str]  # variables that it set before it imported torch
    threads: int
    environment: Mapping[str, str]
    path: tuple[str, ...]
    cores: frozenset[int]
    user: tuple[object, ...]  # and groups, and niceness

    @classmethod
    def here(cls, plan: Plan) -> "Surroundings":
        path = tuple(folder for folder in sys.path if isinstance(folder, str))
        user = os.getresuid(), os.getresgid(), tuple(os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0)
        return cls(dict(plan.environment), plan.threads, dict(os.environ), path, frozenset(host.affinity()), user)


class WarmProcesses:
    """The waiting processes of this process. Main thread only, but for those that nobody has taken for IDLE_S."""

    def __init__(self) -> None:
        self._lifeline: tuple[int, ...] = ()
        self._handles: list[Handle] = []
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Have none, without ending any: in a fork they are the parent's, and their lifeline must not be held."""
        with contextlib.suppress(OSError):
            for descriptor in self._lifeline:
                os.close(descriptor)
            for handle in self._handles:
                handle.close_descriptors()
        self._lock = threading.RLock()  # a signal handler may call `close`
        self._handles = []
        self._last: tuple[Plan, bool] | None = None
        self._surroundings: Surroundings | None = None
        self._lifeline = ()
        self._timer: threading.Timer | None = None

    @property
    def pids(self) -> list[int]:
        return [handle.pid for handle in self._handles]

    def note(self, plan: Plan, *, has_kernels: bool) -> None:
        """Note what the last job was like."""
        self._last = plan, has_kernels

    def keep(self) -> None:
        """Have processes wait for a job like the last one: one for each of its workers, at most one for each core, and
        as far as the machine allows: a training that went well must not fail for it."""
        if self._last is None or threading.current_thread() is not threading.main_thread():
            return
        with contextlib.suppress(OSError, RuntimeError, HogwildError):
            self._keep(*self._last)

    def _keep(self, plan: Plan, has_kernels: bool) -> None:
        count = min(plan.procs, max(1, int(host.usable_cores().usable)))
        surroundings = Surroundings.here(plan)
        if surroundings != self._surroundings or count < len(self._handles):
            self.close()
        if not count:
            return
        if not self._lifeline:
            self._lifeline = os.pipe()
            atexit.register(self.close)  # before multiprocessing's own, which would wait for them
        self._surroundings = surroundings
        with host.blocked_signals(), self._lock:  # also for the timer's thread
            self._bury()
            self._restart_timer()
            while len(self._handles) < count:
                self._handles.append(Handle.spawn(self._lifeline[0], plan, has_kernels=has_kernels))
                self._handles[-1].disown()

    def take(self, plan: Plan) -> Handle | None:
        """Return a process for a job with this plan, one that waits if there is one; None if none fits. Those that do
        not fit are ended."""
        if not self._handles:
            return None
        if Surroundings.here(plan) != self._surroundings:
            self.close()
            return None
        with self._lock:
            self._bury()
            for handle in self._handles:
                handle.listen()
            for handle in sorted(self._handles, key=lambda handle: not handle.is_waiting):
                if host.is_stopped(handle.pid):
                    handle.kill("stopped while it waited")
                    continue
                self._handles.remove(handle)
                handle.own()
                return handle
        return None

    def wait(self) -> None:
        """Wait until all of them wait for a task, or have ended."""
        while starting := [handle for handle in self._handles if not handle.is_waiting and handle.reap() is None]:
            host.wait_readable([word for handle in starting for word in handle.descriptors()], POLL_MS)
            for handle in starting:
                handle.listen()

    def close(self) -> None:
        """End all of them, now."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._bury()
            for handle in self._handles:
                handle.kill()
            for handle in reaped(self._handles, REAP_S):
                self._handles.remove(handle)
                handle.close()
            self._handles = []  # but for one that survives SIGKILL

    def _bury(self) -> None:
        for handle in self._handles[:]:
            if handle.reap() is not None:
                self._handles.remove(handle)
                handle.close()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(IDLE_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self.close()


KEPT = WarmProcesses()
