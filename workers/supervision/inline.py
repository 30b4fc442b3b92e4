"""`procs: 0`: the same trainer, queue and session inside the parent, without a child process, for pdb and profilers."""

import contextlib
import os
import time
from collections.abc import Mapping
from functools import partial

import torch

from hogwild import host
from hogwild.devices.discovery import flushes_denormal
from hogwild.errors import TrainingError
from hogwild.feeds.drawn_order import DrawnOrder
from hogwild.feeds.stream_reader import Filler, Unreadable, copies_of, own_random_state
from hogwild.feeds.waiting import Abandoned, set_pause
from hogwild.monitoring.profile_report import PAUSE
from hogwild.scheduling.work_queue import WorkItem
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Row, Word
from hogwild.workers.child.build import make_trainer
from hogwild.workers.child.spec import WorkerSpec
from hogwild.workers.child.trainer import NonFiniteGradient, Trainer
from hogwild.workers.processes.stacks import Stacks
from hogwild.workers.session.checkpointing import LAST_WRITE_S
from hogwild.workers.session.outcome import Outcome
from hogwild.workers.session.progress import ProgressRecords
from hogwild.workers.session.resume import start_rollback
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.session import Session, pss_bytes_of
from hogwild.workers.supervision.answers import RequestAnswers

WORKER = LOADER = 0


class Inline:
    """Runs one session in this process. An exception of user code is raised unchanged."""

    def __init__(
        self,
        session: Session,
        watch: host.SignalWatch,
        worker_spec: WorkerSpec,
        structure: bytes,
        regions: Mapping[str, Region],
    ) -> None:
        self._session = session
        self._watch = watch
        session.board.renew(WORKER, 1)
        self._make_trainer = partial(make_trainer, worker_spec, structure, regions, Row(session.board, WORKER))
        self._trainer: Trainer
        self._outcome: Outcome | None = None
        self._progress = ProgressRecords(session, time.monotonic())
        self._filler: Filler | None = None  # of streamed data, from its first batch on
        self._stacks = Stacks(session.rundir)
        self._answers = RequestAnswers(session, self._stacks)

    def run(self) -> Outcome:
        session = self._session
        session.start(time.monotonic())
        threads, random_state, flushes = (torch.get_num_threads(), torch.get_rng_state(), flushes_denormal())
        torch.set_flush_denormal(session.job.train.flush_denormal)
        torch.set_num_threads(session.plan.threads)  # as in a worker: it changes the last bits of sums
        set_pause(self._wait)
        try:
            self._trainer = self._make_trainer()  # after set_num_threads: compiled code depends on it
            with contextlib.closing(self._trainer.profile):
                while self._may_go_on():
                    item = self._next()
                    if item is None:
                        continue
                    skipped = self._trainer.train(item, partial(self._may_train, item))
                    if skipped is not None:
                        session.queue.ack(WORKER, item.id, skipped)
            self._answers.close()
            self._progress.record(time.monotonic(), self._rows, is_last=True)
        except NonFiniteGradient as error:
            raise TrainingError(str(error), code=error.code) from error
        finally:
            set_pause(None)
            if hasattr(self, "_trainer"):  # building it may have failed
                self._trainer.model.close()
            torch.set_num_threads(threads)
            torch.set_rng_state(random_state)
            torch.set_flush_denormal(flushes)
            session.peak_pss_bytes = max(session.peak_pss_bytes, sum(pss_bytes_of([]).values()))
        assert self._outcome is not None
        return self._outcome

    def _next(self) -> WorkItem | None:
        """Lease the next item; of a stream, first read a batch into its slot. None: the stream ended."""
        session = self._session
        while (item := session.queue.lease(WORKER)) is None:
            assert session.streamed is not None, "nothing is leased, nothing is free and nothing is due"
            try:
                is_there = self._read(session.streamed)
            except Abandoned:  # the job ends, and the data set waits for its next record
                return None
            if not is_there:
                session.queue.find_ends()
                return None
        return item

    def _read(self, state: RingState) -> bool:
        """Fill one slot, as a loader does; return False if the stream ended instead. Raises DataError; errors of user
        code are raised unchanged, and nothing is retried."""
        request = state.schedule.request(LOADER)
        assert request is not None, "nothing is leased, nothing is filled and nothing is left to read"
        state.write(request)
        with own_random_state():
            if self._filler is None:
                again = copies_of(state.stream) if state.stream.is_iterable else None
                order = DrawnOrder([*self._session.draws.regions.values()]) if self._session.draws is not None else None
                run_dir = str(self._session.rundir.path)
                self._filler = Filler(state.stream, state.ring, again=again, order=order, run_dir=run_dir)
            try:
                is_there = self._filler.fill(request.slot)
            except Unreadable as bad:
                raise bad.error from bad.__cause__
        if is_there:
            state.filled(LOADER, request.slot)
            return True
        state.schedule.ended(LOADER, request.slot)
        if (wrong := state.check()) is not None:
            raise wrong
        return False

    def _wait(self, seconds: float) -> None:
        """Wait in the middle of a batch, for a data set that has nothing yet. Raises Abandoned if the job ends."""
        time.sleep(seconds)
        if not self._may_go_on():
            raise Abandoned

    def _may_go_on(self) -> bool:
        """Book, record and do what is due, between two exchanges; return whether to continue."""
        if self._outcome is not None:
            return False
        session, now = self._session, time.monotonic()
        session.observe([WORKER])
        self._sees_signal()
        session.finish_threads()
        self._answers.answer(
            now, (), lambda _: "train.procs: 0 has no workers", lambda: "train.procs: 0 has no further processes"
        )
        self._stacks.advance(now)
        due = session.due(now)
        if due:
            self._trainer.rest()
            session.observe([WORKER])
            self._pause(now, evaluate=due.evaluate)
            if self._outcome is None:
                self._trainer.follow()
        self._progress.record(now, self._rows)
        return self._outcome is None

    def _rows(self) -> list[dict[str, object]]:
        """Return the row of a worker; its process is this one."""
        updates = int(self._session.board.words[WORKER, Word.UPDATES])
        return [{"worker": WORKER, "state": "training", "pid": os.getpid(), "incarnation": 1, "updates": updates}]

    def _may_train(self, item: WorkItem) -> bool:
        return self._may_go_on() and not self._trainer.is_void(item)

    def _sees_signal(self) -> bool:
        """Return whether a signal has come; the job then stops, even inside an evaluation."""
        if self._watch.received and self._session.stop is None:
            self._session.note_signal(self._watch.received[0])
        return bool(self._watch.received)

    def _pause(self, now: float, *, evaluate: bool) -> None:
        session = self._session
        self._trainer.profile.enter(PAUSE)
        session.merge_buffers(now)
        session.pause_task.wait()
        self._go_back_if_due(now)
        if evaluate:
            self._evaluate()
        if session.saving.is_busy:  # wait: this is the only thread that trains
            session.saving.wait(LAST_WRITE_S)
        if not session.saving.is_busy and session.due(now).checkpoint:
            session.copy_for_checkpoint(now)
        self._go_back_if_due(now)  # the copy may have found ruined parameters
        self._outcome = session.due(now).finish
        self._trainer.profile.enter("wait")
        if self._outcome is None:
            session.go_on(time.monotonic())

    def _evaluate(self) -> None:
        session, evaluating = self._session, self._session.evaluating
        evaluating.start()
        while not (is_done := evaluating.advance()) and not self._sees_signal():
            item = evaluating.current.lease(WORKER) if evaluating.current is not None else None
            assert item is not None, "nothing is leased, and not all is done"
            session.board.write_item(item)
            self._trainer.evaluate(item)
            evaluating.acknowledge(WORKER, item.id)
        if is_done:
            session.finish_evaluation()
        evaluating.abandon()

    def _go_back_if_due(self, now: float) -> None:
        if self._session.due(now).rollback:
            self._session.saving.wait(LAST_WRITE_S)
            start_rollback(self._session)
            while self._session.pause_task.is_busy:  # one task may be followed by another
                self._session.pause_task.wait()
            self._trainer.catch_up()
