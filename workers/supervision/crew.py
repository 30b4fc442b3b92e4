"""All live worker processes of a job: started, woken, dismissed. The roster decides which should live."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from hogwild.devices import discovery
from hogwild.errors import ModelError
from hogwild.planning.cpu_plan import Plan
from hogwild.shared_memory.region import Region
from workers.messages import Setup
from workers.processes.early_start import HeadStart
from workers.processes.handle import REAP_S, Handle, reaped
from workers.processes.spares import Spares
from workers.session.session import Session


class Crew:
    """The live workers by number. Holds the write end of their lifeline: when it closes, remaining workers leave."""

    def __init__(
        self,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
        planned: Plan,
        early: HeadStart,
        spares: int,
    ) -> None:
        self._make_setup = make_setup
        self._early = early
        self._lifeline = os.pipe()
        self._handles: dict[int, Handle] = {}
        self._undead: list[Handle] = []
        # Not a bound method: the reference cycle would keep shared memory alive until garbage collection.
        self._start = partial(Handle.spawn, lifeline=self._lifeline[0], planned=planned)
        self.spares = Spares(spares, self._start)

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._handles.values()))

    def __getitem__(self, worker: int) -> Handle:
        return self._handles[worker]

    def spawn(self, worker: int, incarnation: int) -> Handle:
        """Return a set-up worker: an early one, a spare, or a new process."""
        if discovery.cuda_is_initialized():
            raise ModelError(
                "CUDA was initialised in the supervisor; after that, workers cannot be started safely",
                code="model/cuda",
            )
        handle = self._early.pop() or self.spares.pop() or self._start()
        self._handles[worker] = handle
        try:
            handle.set_up(*self._make_setup(worker), incarnation)
        except OSError as error:  # too many descriptors in flight: kill it; it is started again later
            handle.kill(f"could not be set up: {error}")
        return handle

    def recruit(self) -> Handle:
        """Return a waiting process that will become a loader. Raises OSError."""
        return self._early.pop() or self._start()

    def wake(self, over: int = 0) -> None:
        """Make all workers read the control row now; the pause `over` has ended."""
        for handle in self:
            handle.wake(over)

    def drop(self, handle: Handle) -> None:
        """Drop a reaped worker."""
        del self._handles[handle.worker]
        handle.close()

    def abandon(self, handle: Handle) -> None:
        """Drop a worker that does not die; it is checked once more at the end."""
        del self._handles[handle.worker]
        self._undead.append(handle)

    def book(self, session: Session) -> None:
        """Book what every worker has finished and committed. Acks first: a commit word covers only the newest item, so
        only the pipe tells of the one before it."""
        for handle in self:
            session.acknowledge(handle.worker, handle.acks())
        session.observe(handle.worker for handle in self)

    def dismiss(self, session: Session, grace_s: float, is_hurried: Callable[[], bool]) -> list[Handle]:
        """Let all leave: workers told so by the control row get `grace_s`, or less when `is_hurried`, then SIGKILL. All
        are reaped, and their last acks booked. Return those that survive SIGKILL."""
        self.wake()
        for handle in (*self, *self.spares):
            if not handle.is_ready:
                handle.kill()
        self._reap(session, grace_s, is_hurried)
        for handle in self:
            handle.kill()
        self._reap(session, REAP_S, lambda: False)
        for descriptor in self._lifeline:
            os.close(descriptor)
        for handle in self._undead[:]:
            if handle.reap() is not None:
                self._undead.remove(handle)
                handle.close()
        left = [*self, *self.spares, *self._undead]
        for handle in left:
            handle.disown()
        return left

    def _reap(self, session: Session, limit_s: float, gives_up: Callable[[], bool]) -> None:
        for handle in reaped((*self, *self.spares), limit_s, gives_up):
            if handle.worker in self._handles:
                session.acknowledge(handle.worker, handle.acks())
                self.drop(handle)
            else:
                self.spares.drop(handle)
