"""Spares (`supervise.spares`): processes that have imported torch and wait for a set-up, so that a dead worker is
replaced in a fraction of a second. A spare has no number, row or lease: its death has no cost.

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
    """The time of the next spare's start. Consecutive deaths delay it: otherwise a cause that kills spares would get a
    new process every second."""

    deaths_in_a_row: int = 0
    due_s: float = 0.0

    def died(self, now: float) -> None:
        doublings = min(self.deaths_in_a_row, 10)
        self.deaths_in_a_row += 1
        self.due_s = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)

    def taken(self) -> None:
        self.deaths_in_a_row, self.due_s = 0, 0.0


class Spares:
    """Keeps `wanted` spares, started one at a time. Owned by the crew; main thread only."""

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
        """Return a row per spare for status.json."""
        return [{"pid": each.pid, "state": "waiting" if each.is_waiting else "starting"} for each in self._handles]

    def pop(self) -> Handle | None:
        """Return a spare that waits, or else one that is starting, which is still ahead of a new process; the caller
        then owns it. A spare stopped by a signal is killed and left here to be buried."""
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
        """Start a spare if one is missing, due, and no other is starting. Raises OSError if the machine refuses."""
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

    def drop(self, handle: Handle) -> None:
        """Drop a reaped spare."""
        self._handles.remove(handle)
        handle.close()

    def pop_dead(self, now: float) -> list[tuple[Handle, int]]:
        """Return the spares that died since the last call, with exit status; the caller closes them."""
        dead = []
        for handle in self:
            handle.listen()
            if (status := handle.reap()) is not None:
                self._handles.remove(handle)
                self._pace.died(now)
                dead.append((handle, status))
        return dead
