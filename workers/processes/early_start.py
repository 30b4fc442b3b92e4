"""Early start of workers, before there is anything to train. Importing torch takes each process more than a second:
they do it while the parent imports torch and builds model and data.

    parent   plan ── run directory ── begin ── import torch ── build ── shared memory ── take ── set-up ──► …
    worker            '─────── import torch ── waits for its set-up ─────────────────────────────'

Imports no torch. An early worker writes no file and holds no more than a later one, so a job that is refused meanwhile
leaves nothing behind; workers that are not taken are killed."""

import math
import os
from collections.abc import Iterator, Sequence

from hogwild import host
from hogwild.planning.cpu_plan import FILES, FILES_ON_THEIR_WAY, FILES_PER_WORKER, Plan
from workers.processes.handle import REAP_S, Handle, reaped


class HeadStart:
    """The early workers of one job, until the crew takes them. A context around the whole job: its end kills and reaps
    those not taken, and stops multiprocessing's resource tracker if the job started it. Main thread only."""

    def __init__(self, spares: int = 0) -> None:
        """`spares`: number of spare processes that will be held later beside the workers (`supervise.spares`)."""
        self._spares = spares
        self._loaders = 0
        self._waiting: list[Handle] = []
        self._planned: Plan | None = None
        self._lifeline: tuple[int, ...] = ()
        self._has_begun = False
        self._tracker_was_known = host.is_tracker_known()  # a notebook may have its own tracker

    def __enter__(self) -> "HeadStart":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lifeline:
            with host.blocked_signals():
                self._dismiss(self._waiting)
                for descriptor in self._lifeline:
                    os.close(descriptor)
                self._lifeline = ()
        if self._has_begun and not self._tracker_was_known:
            host.stop_resource_tracker()

    def start(self, planned: Plan, cores: float, loaders: int = 0) -> None:
        """Start as many workers of the plan as there are whole `cores`: more would slow down the parent's own import.
        Start `loaders` likewise: the first update needs one of each. If the machine refuses a process, the crew reports
        it later. Raises RunError if the limit on open files is too low."""
        if not planned.procs:
            return
        self._has_begun = True
        self._planned = planned
        self._loaders = loaders
        self.raise_file_limit(planned)  # first: a worker inherits our limit when it starts
        # Block signals: an exception between starting a process and storing its handle would lose the process.
        with host.blocked_signals():
            try:
                self._lifeline = os.pipe()
                most = max(1, math.floor(cores))
                for _ in range(min(planned.procs, most) + min(loaders, most)):
                    self._waiting.append(Handle.spawn(lifeline=self._lifeline[0], planned=planned))
            except OSError:  # no PID, memory or descriptor left, perhaps only temporarily
                return

    def raise_file_limit(self, planned: Plan) -> None:
        """Raise the limit on open files for the whole job; early workers' descriptors count once. Raises RunError."""
        held = len(self._lifeline) + FILES_PER_WORKER * len(self._waiting)
        processes = planned.procs + self._loaders + self._spares if planned.procs else 0
        needed = FILES + FILES_PER_WORKER * processes - held
        host.raise_file_limit(needed, needed + FILES_ON_THEIR_WAY * planned.procs)

    def pop(self) -> Handle | None:
        """Return one early worker, which the caller then owns; it may already be dead, as any worker may. None if none
        is left."""
        return self._waiting.pop(0) if self._waiting else None

    def keep(self, count: int) -> None:
        """Keep at most `count` early workers; end the others."""
        with host.blocked_signals():
            self._dismiss(self._waiting[count:])

    def __iter__(self) -> Iterator[Handle]:
        """Iterate over the workers not yet taken: they may get reading tasks meanwhile, see `loading.py`."""
        return iter(list(self._waiting))

    def replace(self, dead: Handle) -> Handle | None:
        """Start a worker in place of a dead and reaped one. None if the machine refuses."""
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
        """Stop waiting for a process that survives SIGKILL."""
        self._waiting.remove(undead)
        undead.disown()

    def _dismiss(self, handles: Sequence[Handle]) -> None:
        left = list(handles)
        for handle in left:
            handle.kill()
        for handle in reaped(handles, REAP_S):
            left.remove(handle)
            self._waiting.remove(handle)
            handle.close()
        for handle in left:
            self.abandon(handle)
