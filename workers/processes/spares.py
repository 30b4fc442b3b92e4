"""Spares (`supervise.spares`): processes that have imported torch and wait for a set-up, so that the place of a dead
worker is filled in a fraction of a second. A spare has no number, no row and no lease: its death costs nobody anything.

    start ── import torch ── "waiting" ──► taken: it is a worker from now on
       '───────── dies ───────┴──► spare-exit, the next one after a pause that doubles until one is taken"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hogwild import host
from workers.processes.handle import Handle

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 60.0


@dataclass(slots=True)
class Pace:
    """When the next spare may be started. Deaths in a row, with none taken between, make it rarer: what kills spares
    would be fed a process a second otherwise."""

    deaths_in_a_row: int = 0
    due_s: float = 0.0

    def died(self, now: float) -> None:
        doublings = min(self.deaths_in_a_row, 10)
        self.deaths_in_a_row += 1
        self.due_s = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)

    def taken(self) -> None:
        self.deaths_in_a_row, self.due_s = 0, 0.0


class Spares:
    """Keeps `wanted` of them, started one at a time. Owned by the crew; main thread only."""

    def __init__(self, wanted: int, start: Callable[[], Handle]) -> None:
        self._wanted = wanted
        self._start = start
        self._pace = Pace()
        self._handles: list[Handle] = []

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._handles))

    @property
    def ready(self) -> int:
        return sum(handle.is_waiting for handle in self._handles)

    def rows(self) -> list[dict[str, object]]:
        """For status.json."""
        return [{"pid": each.pid, "state": "waiting" if each.is_waiting else "starting"} for each in self._handles]

    def take(self) -> Handle | None:
        """The caller's from now on: one that waits, or else one on its way, which has a head start over a new process.
        One that somebody has stopped would answer nobody: it is killed and left here to be buried."""
        for handle in sorted(self._handles, key=lambda handle: not handle.is_waiting):
            if handle.killed_for or handle.reap() is not None:
                continue
            if host.is_stopped(handle.pid):
                handle.kill("stopped while it waited")
                continue
            self._handles.remove(handle)
            self._pace.taken()
            return handle
        return None

    def fill(self, now: float) -> Handle | None:
        """Starts one if one is missing, due, and no other is on its way. Raises OSError when the machine refuses."""
        is_one_on_its_way = any(not handle.is_waiting for handle in self._handles)
        if len(self._handles) >= self._wanted or is_one_on_its_way or now < self._pace.due_s:
            return None
        try:
            handle = self._start()
        except OSError:
            self._pace.died(now)
            raise
        handle.is_spare = True
        self._handles.append(handle)
        return handle

    def bury(self, now: float) -> list[tuple[Handle, int]]:
        """Those that have died since the last call, each with its exit status; the caller closes them."""
        dead = []
        for handle in self:
            handle.listen()
            if (status := handle.reap()) is not None:
                self._handles.remove(handle)
                self._pace.died(now)
                dead.append((handle, status))
        return dead
