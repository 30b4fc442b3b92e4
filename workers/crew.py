"""All worker processes of a job that are alive: started, woken, asked for their stacks, dismissed. Who should be
alive is the roster's decision."""

import os
import time
from collections.abc import Callable, Iterable, Iterator

from hogwild import device, host
from hogwild.errors import ModelError
from hogwild.plan import Plan
from hogwild.rundir import RunDir
from workers.handle import POLL_MS, REAP_S, Handle
from workers.head_start import HeadStart
from workers.messages import Setup
from workers.session import Session

STACKS_WAIT_S = 0.5


class Crew:
    """The live workers by number. Holds the write end of their lifeline: when it closes, whoever is left leaves."""

    def __init__(
        self,
        rundir: RunDir,
        make_setup: Callable[[int], tuple[Setup, list[int]]],
        planned: Plan,
        early: HeadStart,
    ) -> None:
        self._rundir = rundir
        self._make_setup = make_setup
        self._plan = planned
        self._early = early
        self._lifeline = os.pipe()
        self._handles: dict[int, Handle] = {}

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._handles.values()))

    def __contains__(self, worker: int) -> bool:
        return worker in self._handles

    def __getitem__(self, worker: int) -> Handle:
        return self._handles[worker]

    def spawn(self, worker: int, incarnation: int) -> Handle:
        """One that has started early, or a new one; set up either way."""
        if device.cuda_is_initialized():
            raise ModelError("CUDA was initialised in the supervisor; workers cannot be started safely after that")
        handle = self._early.take(worker, incarnation)
        if handle is None:
            handle = Handle.spawn(worker, incarnation, lifeline=self._lifeline[0], planned=self._plan)
        self._handles[worker] = handle
        try:
            handle.set_up(*self._make_setup(worker))
        except OSError as error:  # too many descriptors on their way: it dies, and is started again after a while
            handle.kill(f"could not be set up: {error}")
        return handle

    def wake(self) -> None:
        """Everybody looks at the control row now."""
        for handle in self:
            handle.wake()

    def forget(self, handle: Handle) -> None:
        """After it was reaped."""
        del self._handles[handle.worker]
        handle.close()

    def request_stacks(self, handles: Iterable[Handle]) -> None:
        """Asks for the stacks of all threads (faulthandler, also inside native code) and waits until they are
        written, at most half a second. A stopped process cannot answer and is not asked."""
        able = [h for h in handles if h.is_ready and host.process_state(h.pid) != "T"]
        before = {h.worker: self._stacks_size(h.worker) for h in able}
        asked = [h for h in able if host.request_stack(h.pidfd)]
        deadline = time.monotonic() + STACKS_WAIT_S
        while asked and time.monotonic() < deadline:
            host.wait_readable([h.pidfd for h in asked], POLL_MS)
            asked = [h for h in asked if h.reap() is None and not self._has_written(h, before[h.worker])]

    def _has_written(self, handle: Handle, before: int) -> bool:
        return self._stacks_size(handle.worker) > before and not host.is_writing_stack(handle.pid)

    def _stacks_size(self, worker: int) -> int:
        file = self._rundir.worker_stacks(worker)
        return file.stat().st_size if file.exists() else 0

    def book(self, session: Session) -> None:
        """Takes in what every worker has finished and committed. The acknowledgements first: a commit word speaks only
        of the newest item, so of the one before it only the pipe tells."""
        for handle in self:
            session.acknowledge(handle.worker, handle.acks())
        session.observe(handle.worker for handle in self)

    def dismiss(self, session: Session, grace_s: float, is_hurried: Callable[[], bool]) -> list[Handle]:
        """Everybody leaves: those told to by the control row get `grace_s`, or less when `is_hurried`, then SIGKILL;
        all are reaped, and their last acknowledgements booked. Returns those that do not even die of that."""
        self.wake()
        for handle in self:
            if not handle.is_ready:
                handle.kill()
        self._reap_until(session, time.monotonic() + grace_s, is_hurried)
        for handle in self:
            handle.kill()
        self._reap_until(session, time.monotonic() + REAP_S)
        for descriptor in self._lifeline:
            os.close(descriptor)
        return list(self)

    def _reap_until(self, session: Session, deadline: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        while self._handles and time.monotonic() < deadline and not gives_up():
            host.wait_readable([handle.pidfd for handle in self], POLL_MS)
            for handle in self:
                if handle.reap() is not None:
                    session.acknowledge(handle.worker, handle.acks())
                    self.forget(handle)
