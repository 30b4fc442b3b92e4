"""Workers that start before there is anything to train. Importing torch takes each process more than a second: they do
it while the parent does it, too, and builds model and data.

    parent   plan ── begin ── import torch ── run directory ── build ── shared memory ── take ── set-up ──► …
    worker            '─────── import torch ── waits for its set-up ─────────────────────────────'

Imports no torch. An early worker writes no file, so a job that is refused meanwhile leaves nothing behind, and holds
nothing that a later one does not: whoever is not taken is killed."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from hogwild import host
from hogwild.planning.cpu_plan import FILES, FILES_ON_THEIR_WAY, FILES_PER_WORKER, Plan
from workers.processes.handle import POLL_MS, REAP_S, Handle


class HeadStart:
    """The early workers of one job, until the crew takes them. A context around the whole job: at its end
    those that were not taken are killed and reaped, and so is multiprocessing's resource tracker if the job started
    it. Main thread only."""

    def __init__(self, spares: int = 0) -> None:
        """`spares`: so many processes beside the workers will be held later (`supervise.spares`)."""
        self._spares = spares
        self._loaders = 0
        self._waiting: list[Handle] = []
        self._planned: Plan | None = None
        self._lifeline: tuple[int, ...] = ()
        self._has_begun = False
        self._tracker_was_known = host.is_tracker_known()  # a notebook may have one of its own

    def __enter__(self) -> "HeadStart":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lifeline:
            self._end()
        if self._has_begun and not self._tracker_was_known:
            host.stop_resource_tracker()

    def begin(self, planned: Plan, cores: float, loaders: int = 0) -> None:
        """Starts as many workers of the plan as there are whole `cores`: more would only slow down the parent's own
        import. As many `loaders` come on top: the first update needs one of each. One that the machine refuses is
        left to the crew, which knows how to say so. Raises RunError when the limit on open files is too low."""
        if not planned.procs:
            return
        self._has_begun = True
        self._planned = planned
        self._loaders = loaders
        self.raise_file_limit(planned)  # before: a worker has the limit that we have when it starts
        # A signal arrives when all is noted: nothing here may be broken off between a process and its handle.
        with host.blocked_signals():
            try:
                self._lifeline = os.pipe()
                most = max(1, math.floor(cores))
                for _ in range(min(planned.procs, most) + min(loaders, most)):
                    self._waiting.append(Handle.spawn(lifeline=self._lifeline[0], planned=planned))
            except OSError:  # no number, memory or descriptor left, perhaps only now
                return

    def raise_file_limit(self, planned: Plan) -> None:
        """So that the job's descriptors fit, those that are held for early workers counted once. Raises RunError."""
        held = len(self._lifeline) + FILES_PER_WORKER * len(self._waiting)
        processes = planned.procs + self._loaders + self._spares if planned.procs else 0
        needed = FILES + FILES_PER_WORKER * processes - held
        host.raise_file_limit(needed, needed + FILES_ON_THEIR_WAY * planned.procs)

    def take(self) -> Handle | None:
        """One of them, which is the caller's from now on; it may have died meanwhile, as any may. None when there is
        none left."""
        return self._waiting.pop(0) if self._waiting else None

    def keep(self, count: int) -> None:
        """The job turns out to need no more than `count`: the others end."""
        with host.blocked_signals():
            self._dismiss(self._waiting[count:])

    def __iter__(self) -> Iterator[Handle]:
        """Those that are not taken: they may be given something to do meanwhile, see `loading.py`."""
        return iter(list(self._waiting))

    def replace(self, dead: Handle) -> Handle | None:
        """Another one instead of one that is dead and reaped. None when the machine refuses."""
        assert self._planned is not None
        with host.blocked_signals():
            self._waiting.remove(dead)
            dead.close()
            try:
                self._waiting.append(Handle.spawn(lifeline=self._lifeline[0], planned=self._planned))
            except OSError:
                return None
            return self._waiting[-1]

    def abandon(self, undead: Handle) -> None:
        """One that does not die of SIGKILL: nobody waits for it any more."""
        self._waiting.remove(undead)
        undead.disown()

    def _end(self) -> None:
        with host.blocked_signals():
            self._dismiss(self._waiting)
            for descriptor in self._lifeline:
                os.close(descriptor)
            self._lifeline = ()

    def _dismiss(self, handles: Sequence[Handle]) -> None:
        left = list(handles)
        for handle in left:
            handle.kill()
        deadline = time.monotonic() + REAP_S
        while left and time.monotonic() < deadline:
            host.wait_readable([handle.pidfd for handle in left], POLL_MS)
            for handle in left[:]:
                if handle.reap() is not None:
                    left.remove(handle)
                    self._waiting.remove(handle)
                    handle.close()
        for handle in left:
            self.abandon(handle)
