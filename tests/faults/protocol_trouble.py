"""Signals from outside for the workers of `protocol.py`, at random times, whatever they are doing."""

import random
import signal
from collections.abc import Mapping

from hogwild import host
from hogwild.workers.processes.handle import Handle

SIGNALS = [signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGSTOP, signal.SIGSTOP]
STALL_S = 0.5  # a worker that is only slow may be taken for a stalled one: it is fenced then, and nothing is lost


class Trouble:
    """One signal `every_s` on average, to whoever is alive."""

    def __init__(self, rng: random.Random, every_s: float) -> None:
        self._rng, self._every_s = rng, every_s
        self._next_s = self._next_look_s = 0.0
        self._wakes: list[tuple[float, Handle]] = []  # stopped by us; to be woken then, if they still live
        self._signalled_early: set[int] = set()

    def make(self, crew: Mapping[int, Handle], now: float) -> None:
        for at, handle in [*self._wakes]:
            if now >= at:
                self._wakes.remove((at, handle))
                host.kill_by_pidfd(handle.pidfd, signal.SIGCONT)
        if now >= self._next_look_s:
            self._next_look_s = now + STALL_S
            self._fence_the_stopped(crew)
        if now >= self._next_s and crew:
            self._next_s = now + self._rng.expovariate(1 / self._every_s)
            self._strike(crew[self._rng.choice(sorted(crew))], now)

    def _strike(self, handle: Handle, now: float) -> None:
        if not handle.is_ready:  # three starts that fail in a row are another story
            if handle.number in self._signalled_early:
                return
            self._signalled_early.add(handle.number)
        else:
            self._signalled_early.discard(handle.number)
        number = self._rng.choice(SIGNALS)
        host.kill_by_pidfd(handle.pidfd, number)
        if number == signal.SIGSTOP and self._rng.random() < 0.9:  # the others are fenced when they have been silent
            self._wakes.append((now + self._rng.uniform(0, 2 * STALL_S), handle))

    def _fence_the_stopped(self, crew: Mapping[int, Handle]) -> None:
        """The roster judges by the beat whom it has seen commit. A first start has a longer clock, which would cost the
        run its pace."""
        awaited = [handle for _, handle in self._wakes]
        for handle in crew.values():
            if handle not in awaited and host.process_status(handle.pid) == "stopped":
                handle.kill("stopped")

    def forget(self, handle: Handle) -> None:
        """It is dead; its descriptor will be somebody else's."""
        self._wakes = [(at, stopped) for at, stopped in self._wakes if stopped is not handle]
