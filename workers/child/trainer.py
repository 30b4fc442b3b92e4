"""A worker's way through its leases, from top to bottom: pull, train or evaluate batch by batch, commit, acknowledge.

    WorkerLoop   pulled leases, in order -> Trainer -> ack          waiting: beat, five times a second
    Trainer      direct   gather -> forward, backward (privately) -> finite? -> intent -> apply to the flats -> commit
                          -> counters
                 delta    gather -> forward, backward -> finite? -> apply to the own copy      `sync_every` times, then
                          flush: intent -> add the changes to the flats -> commit -> counters

On PAUSE in the control row the loop parks between two exchanges, evaluates leased slices, then continues inside the
item. A kill before *intent* loses the uncommitted work, a kill after *commit* loses nothing; in between, this one
exchange is in doubt.

The trainer knows no pipes: `inline.py` runs one in the supervisor itself (`procs: 0`). No torch here: the computing
objects are passed in (`Numerics`), so that order and crashes can be tested without torch."""

import contextlib
import math
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hogwild.errors import NOT_FINITE, DeviceMemoryError, HogwildError
from hogwild.monitoring.profile_report import PAUSE
from hogwild.scheduling.batch_plan import batch_seed
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Row, Scoreboard, Word
from hogwild.training.lr_schedule import halved
from hogwild.user_code import raised_text, user_frame
from hogwild.workers.child.fused_trainer import Chunks
from hogwild.workers.child.profiler import Profile
from hogwild.workers.child.spec import Numerics, WorkerSpec
from hogwild.workers.messages import LOOK, Leases, Leaving, ParentGone, Report, Start, write_record

_COMMAND = int(Control.COMMAND)  # plain integers: read before every update
_FIRST_ITEM = int(Control.FIRST_ITEM)
_ELSEWHERE, _RATES = int(Control.ELSEWHERE), int(Control.RATES)
_THREADS = int(Control.THREADS)
_RUN = int(Command.RUN)
WAIT_MS = 200  # between two beats of an idle worker
CHECK_BOUND_EVERY = 256  # updates between two checks that parameters are still shared
# An exchange of slow updates ends early, because the start and deadlock timeouts (supervise) count commits.
LONGEST_EXCHANGE_NS = 30 * 10**9


class NonFiniteGradient(Exception):
    """A loss or gradient is NaN or infinite and the job says `on_nan: fail`."""

    code = NOT_FINITE


class Loop:
    """The work of a child between set-up and end. `item`: the lease that a failure is reported for; `path`: of its
    updates, and why."""

    path = ""
    item: WorkItem | None = None

    def run(self) -> None:
        """Work until told to leave. Raises ParentGone."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open: the process ends, for any reason."""


class WorkerLoop(Loop):
    """Pulls items over the worker's own pipes. Every wait beats and watches the lifeline."""

    def __init__(self, start: Start, trainer: "Trainer", leaving: Leaving) -> None:
        self._start = start
        self._trainer = trainer
        self._row = trainer.row
        self._board = trainer.row.board
        self._leaving = leaving
        self._hand: deque[int] = deque()
        self._over = 0  # the last pause that is over, as told by a record
        self.path = trainer.path
        self._leases = Leases(start)

    def run(self) -> None:
        """Process items until told to leave, by the control row or by SIGTERM."""
        while (item := self._next()) is not None:
            self.item = item
            if item.kind is not Kind.TRAIN:
                self._trainer.profile.enter(PAUSE)
                self._evaluate(item)
                continue
            self._trainer.catch_up()  # a rollback may have happened while this worker was built
            skipped = self._trainer.train(item, self._may_train)
            if skipped is None and self._trainer.is_void(item):
                continue
            if skipped is None:
                break
            self._row.enter(Phase.WAITING)
            write_record(self._start.ack_write, skipped, item.id)
        self._trainer.rest()
        self._row.enter(Phase.LEAVING)

    def close(self) -> None:
        self._trainer.profile.close()
        self._trainer.model.close()

    def _evaluate(self, item: WorkItem) -> None:
        self._trainer.catch_up()
        self._trainer.evaluate(item)
        self._row.enter(Phase.PARKED if self._command() == Command.PAUSE else Phase.WAITING)
        write_record(self._start.ack_write, 0, item.id)

    def _next(self) -> WorkItem | None:
        """Return the next pulled item, or wait for one. None: leave."""
        self._trainer.profile.enter("wait")
        self._row.enter(Phase.WAITING)
        while True:
            if not self._may_go_on():
                return None
            if not self._hand:
                self._pull(0)
            self._drop_void()
            if self._hand:
                return self._board.read_item(self._hand.popleft())
            self._pull(WAIT_MS)

    def _drop_void(self) -> None:
        """Drop pulled items that were leased before the last rollback: their rows of the item table may be reused by
        now."""
        first = self._board.control_words[_FIRST_ITEM]
        while self._hand and self._hand[0] < first:  # ids increase
            self._hand.popleft()

    def _may_train(self) -> bool:
        """Return whether to continue the item; called between two exchanges. False: drop the item, or leave."""
        if self._command() == _RUN and not self._leaving.asked:
            return True
        return self._may_go_on() and self.item is not None and not self._trainer.is_void(self.item)

    def _may_go_on(self) -> bool:
        """Return whether to continue; parks while the control row says so. Called between two exchanges."""
        command = self._command()
        if command == Command.RUN and not self._leaving.asked:
            return True
        return command == Command.PAUSE and not self._leaving.asked and self._park()

    def _command(self) -> int:
        """Return the control row's command."""
        command: int = self._board.control_words[_COMMAND]
        return command

    def _park(self) -> bool:
        """Report that this worker no longer writes the flats; evaluate meanwhile. False: leave."""
        self._trainer.flush()
        self._trainer.profile.enter(PAUSE)
        self._trainer.rest()  # else rebound or device values would be missing from the merge and the snapshot
        phase = int(self._row.words[Word.PHASE])
        announced = 0
        # Trust RUN only after a record confirms it: then earlier stores, for instance of a rollback, are visible.
        while (command := self._command()) == Command.PAUSE or (command == Command.RUN and self._over < announced):
            if self._leaving.asked:
                return False
            number = int(self._board.control[Control.PAUSE])
            if number != announced:
                self._row.enter(Phase.PARKED)
                self._row.words[Word.PARKED] = announced = number
                write_record(self._start.ack_write, number, LOOK)
            self._drop_void()
            for item_id in tuple(self._hand):  # an evaluation may have been pulled before we parked
                if (item := self._board.read_item(item_id)).kind is not Kind.TRAIN:
                    self._hand.remove(item_id)
                    self._evaluate(item)
            self._pull(WAIT_MS)
        if command != Command.RUN or self._leaving.asked:
            return False  # leaving: do not rebuild anything
        is_void = self.item is not None and self._trainer.is_void(self.item)
        self._row.enter(Phase.WAITING if is_void else Phase(phase))
        self._trainer.profile.enter("wait")
        self._trainer.catch_up()
        self._trainer.follow()
        return True

    def _pull(self, wait_ms: int) -> None:
        """Queue the leases that have arrived; wait up to `wait_ms` for one."""
        for first, item in self._leases.pull(wait_ms):
            if item != LOOK:
                self._hand.append(item)
            else:
                self._over = max(self._over, first)
        self._row.beat()


@dataclass(slots=True)
class Unflushed:
    """The work of a worker since its last commit, for one item."""

    batches: int = 0
    updates: int = 0  # applied to the flats (direct) or to the own copy (delta)
    updated: int = 0  # batches in those updates; their losses are in `loss_sum`
    loss_sum: float = 0.0
    samples: int = 0  # in those batches
    sample_loss: float = 0.0  # sum of their losses
    not_finite: int = 0  # updates skipped for a NaN or infinite loss or gradient
    lane_restarts: int = 0  # batches inside a lane that began from zero state
    # (sums, counts) of further losses, and of scores before learning
    further: list[tuple[Sequence[float], Sequence[float]]] = field(default_factory=list)


class Trainer:
    """Trains and evaluates items on one worker's view of the model."""

    def __init__(
        self,
        worker_spec: WorkerSpec,
        make: Callable[[], Numerics],
        row: Row,
        profile: Profile,
    ) -> None:
        """`make` builds the numerics from shared memory: now, and again after a rollback."""
        self.worker_spec = worker_spec
        self._rules, self._loss_names = worker_spec.rules, worker_spec.compute.loss_names
        self._most_stale = math.inf if self._rules.max_staleness is None else self._rules.max_staleness
        self.profile = profile
        self.row = row
        self._make = make
        self._use(make())
        self._schedule = self._rules.schedule
        self._board: Scoreboard = row.board
        self._made = 0  # updates by this incarnation
        self._until_check = 1  # the first check comes before the first commit
        self._sync_every = 0  # updates between two flushes; 0: direct
        self._item: WorkItem | None = None
        self._done = self._skipped = 0  # batches of the item: computed; of these, not applied
        self._open = Unflushed()
        self._opened_ns = 0  # when its first batch began
        self._samples = 0  # of the update
        self._read_at = 0  # updates by all workers when the parameters were read
        self._staleness = 0  # of the next write: updates by others since then
        self._threads = 0  # that the control row has told

    def _use(self, numerics: Numerics) -> None:
        self.model = numerics.model
        self.path = numerics.path
        self._fused = numerics.fused
        self._chunks: Chunks | None = None
        if numerics.fused is not None:
            rules = self._rules
            self._chunks = Chunks(numerics.fused, self.row, self.profile, rules.seed, rules.sync_every)
        if numerics.update is not None and numerics.feed is not None:
            self.update, self.train_feed = numerics.update, numerics.feed
        self._evaluator = numerics.evaluator
        self._place = numerics.place
        self._lanes = numerics.lanes
        self._scorer, self._scores = numerics.scorer, list[list[float]]()
        self._rollbacks = numerics.rollbacks
        self._rates_of: int | list[float] | None = None  # the steps, or the published rates, that the groups have

    def catch_up(self) -> None:
        """Rebuild all private state, as after a resume, if the run has gone back to a checkpoint: the state of the
        user's model and update rule, too, belongs to a discarded history. Nothing may be unflushed."""
        if self._board.control_words[Control.ROLLBACKS] != self._rollbacks:
            self.model.close()
            self._use(self._make())
            self._until_check = 1

    def rest(self) -> None:
        """Commit everything and put it where the parent reads it: before a pause, and before leaving."""
        self.flush()
        self.model.rest()

    def is_void(self, item: WorkItem) -> bool:
        """Return whether the item was leased before the last rollback: another worker may have its batches by now."""
        return item.id < self._board.control_words[Control.FIRST_ITEM]

    def train(self, item: WorkItem, may_go_on: Callable[[], bool]) -> int | None:
        """Train every batch of `item`; return how many were skipped. `may_go_on` is called before each update: it may
        park the worker for a while (between `flush` and `follow`); False ends the work before this update (returns
        None)."""
        self._item, self._done, self._skipped = item, 0, 0
        self.row.enter(Phase.WORKING)
        self.follow()
        if self._chunks is not None:
            self.model.check_bound()
            answer = self._chunks.train(item, may_go_on, lambda: self._schedule)
            if answer is None:
                return None
            skipped, not_finite = answer
            if not_finite and self._rules.fail_on_nan:
                raise NonFiniteGradient(
                    f"the gradient of {not_finite} samples in epoch {item.epoch}, batches {item.start} to "
                    f"{item.stop - 1}, is NaN or infinite (supervise.on_nan is 'fail'); lower the learning rate, or "
                    "look at these samples"
                )
            return skipped
        accumulate = self._rules.accumulate
        with self._place.explained():
            for start in range(item.start, item.stop, accumulate):
                if not may_go_on():
                    self.flush()
                    return None
                self._update(item, range(start, min(start + accumulate, item.stop)))
            self.flush()
        return self._skipped

    def follow(self) -> None:
        """Adopt the exchange of the control row and read the parameters again. Nothing may be unflushed."""
        self._follow_threads()
        if self.model.start():
            print("the optimizer goes on from the state of another worker, which has made more updates", flush=True)
            if self._fused is None:
                self.update.start_at(self._board.job_updates())
        self._sync_every = self._board.control_words[Control.SYNC_EVERY]
        self._schedule = halved(self._rules.schedule, self._board.control_words[Control.ROLLBACKS])
        # Before the flats are read: updates counted so far are in the values read, later ones perhaps not.
        self._read_at = self._board.updates()
        if self.model.exchange.is_delta != bool(self._sync_every):
            self.model.bind(delta=bool(self._sync_every))
        elif self._sync_every:
            self.model.exchange.refresh()
        if self._fused is not None:
            self._fused.refresh()
        self._mark_buffers()

    def _follow_threads(self) -> None:
        """Compute with the threads that the control row tells: what other jobs on this machine leave."""
        if (threads := self._board.control_words[_THREADS]) != self._threads:
            import torch

            torch.set_num_threads(threads)
            self._threads = threads

    def flush(self) -> None:
        """Commit the work since the last commit; in delta, add it to the flats first."""
        fresh, item = self._open, self._item
        if not fresh.batches or item is None:
            return
        if self._sync_every and fresh.updates:
            self.profile.enter("apply")
            now = self._board.updates()
            self._staleness = now - self._read_at
            if self._staleness > self._most_stale:
                self.model.exchange.refresh()
                self.model.return_buffers()
                self._skipped += fresh.updated
                fresh.updates = 0
            else:
                self.row.intend(item.id, self._done)
                self.model.exchange.flush()
                self._mark_buffers()
            self._read_at = now + fresh.updates  # our own updates are counted after the commit
            self.profile.enter("bookkeeping")
        self.row.commit(item.id, self._done, self._skipped)
        if fresh.updates:
            self.row.count_updates(fresh.updates, self._staleness)
        self.row.count_batches(fresh.batches, fresh.updated, fresh.loss_sum)
        self.row.count_epoch(item.epoch, fresh.samples, fresh.sample_loss)
        for sums, counts in fresh.further:
            self.row.count_further(sums, counts)
        if fresh.not_finite:
            self.row.count_not_finite(fresh.not_finite)
        if fresh.lane_restarts:
            self.row.count_lane_restarts(fresh.lane_restarts)
        self._open = Unflushed()

    def _mark_buffers(self) -> None:
        """In delta, mark the buffers: a whole exchange may prove too old after it moved the running averages."""
        if self._sync_every and self._most_stale < math.inf:
            self.model.mark_buffers()

    def _update(self, item: WorkItem, batches: Sequence[int]) -> None:
        """Compute the gradient of `batches` and apply it, or skip it."""
        began_ns = time.monotonic_ns()
        self.profile.start_update(self._made)
        if not self._sync_every:
            self._read_at = self._board.updates()
        if not self._open.batches:
            self._opened_ns = began_ns
        if self.update.next_thaw is not None:
            self.update.thaw(self._board.job_updates() + self._open.updates)
        try:
            self.model.keep_buffers()
            loss = self._gradient(item, batches)
            while self.update.must_redo():  # fp16: with a smaller loss scale, all else equal
                self.model.restore_buffers()
                self.row.beat()
                loss = self._gradient(item, batches)
        except BaseException as error:
            if not self._place.is_lost():
                self.flush()  # commit earlier work: a bad sample costs only its own update
            if not self._forgets_inference(error):
                raise
            self._update(item, batches)
            return
        self.profile.enter("check")
        self._done += len(batches)
        self._open.batches += len(batches)
        for words in self._scores:  # of batches, learnt or not; behind the further losses, which they resemble
            before = [0.0] * len(self._loss_names)
            if all(map(math.isfinite, words)):
                self._open.further.append(([*before, *words[::2]], [*before, *words[1::2]]))
        if not (math.isfinite(loss) and self.update.is_finite()):
            self._skip(item, batches)
        else:
            self._until_check -= 1
            if self._until_check <= 0:
                self._until_check = CHECK_BOUND_EVERY
                self.model.check_bound()
            self._apply(item, len(batches), loss)
        self.profile.enter("bookkeeping")
        if self._open.updates >= self._sync_every or time.monotonic_ns() - self._opened_ns > LONGEST_EXCHANGE_NS:
            self.flush()
        self.row.note_update(began_ns)

    def _forgets_inference(self, error: BaseException) -> bool:
        """Return True if the batch may be retried: the model had kept a tensor of an evaluation under inference_mode.
        Evaluations no longer use it, and all private state is rebuilt."""
        if getattr(error, "code", "") != "model/kept-inference" or not self.row.forbid_inference():
            return False
        self.model.restore_buffers()
        self._use(self._make())
        self.follow()
        return True

    def _apply(self, item: WorkItem, batches: int, loss: float) -> None:
        """Apply the update, to the own copy (delta) or to the flats: not if these have moved too far since they were
        read."""
        made = self._board.updates()  # before this one, by all workers of this node
        if self._sync_every:
            made += self._open.updates
        else:
            self._staleness = made - self._read_at
            if self._staleness > self._most_stale:
                self.update.discard()
                self.model.restore_buffers()
                self._skipped += batches
                return
            self.row.intend(item.id, self._done)
        self.profile.enter("apply")
        if self._loss_names:
            self._open.further.append(self.update.pop_losses())
        self._follow_rates(item.epoch, made)
        self.update.apply(
            None if self._schedule is None else self._schedule(made + self._board.control_words[_ELSEWHERE])
        )
        fresh = self._open
        fresh.updates += 1
        self._made += 1
        fresh.updated += batches
        fresh.loss_sum += loss
        fresh.samples += self._samples
        fresh.sample_loss += loss / batches * self._samples

    def _follow_rates(self, epoch: int, made: int) -> None:
        """Set the groups' rates: by the scheduler of torch, or as the supervisor has published them."""
        stepped = self._rules.stepped
        if stepped is not None:
            steps = stepped.steps_at(made + self._board.control_words[_ELSEWHERE], epoch)
            if steps != self._rates_of:
                self.update.set_groups(stepped.after(steps))
                self._rates_of = steps
        elif self._board.control_words[_RATES] and (rates := self._board.rates()) != self._rates_of:
            self.update.set_groups([{"lr": rate} for rate in rates])
            self._rates_of = rates

    def _gradient(self, item: WorkItem, batches: Sequence[int]) -> float:
        self._scores, self._samples, loss = [], 0, 0.0
        place, feed, epoch = self._place, self.train_feed, item.epoch
        for number in batches:
            self.profile.enter("gather")
            batch = feed.gather(epoch, number)
            self._samples += batch.size
            if self._scorer is not None:
                self._scores.append(self._scorer.words(batch.inputs, batch.target))
            place.seed(batch_seed(self._rules.seed, epoch, batch.first_position))
            if self._lanes is not None and self._lanes.start_batch(epoch, number):
                self._open.lane_restarts += 1
            loss += self.update.backward(batch.inputs, batch.target, 1 / len(batches))
            if number + 1 < item.stop:
                place.announce(feed, epoch, number + 1)
        return place.losses(self.update, loss)

    def _skip(self, item: WorkItem, batches: Sequence[int]) -> None:
        self.update.discard()
        self.model.restore_buffers()
        self._skipped += len(batches)
        self._open.not_finite += 1
        if self._lanes is not None:
            self._lanes.drop()
        if self._rules.fail_on_nan:
            raise NonFiniteGradient(
                f"the loss or gradient of epoch {item.epoch}, batch {batches[0]} is NaN or infinite "
                "(supervise.on_nan is 'fail'); lower the learning rate, set train.grad_clip, or look at these samples"
            )

    def evaluate(self, item: WorkItem) -> None:
        """Sum the metrics over the item's batches, or score all outputs, and write the result into its row."""
        assert self._evaluator is not None
        self.row.enter(Phase.EVALUATING)
        self.model.refresh()  # others may have flushed since we parked
        self._follow_threads()
        is_slice = item.kind is Kind.EVALUATE
        batches = range(item.start, item.stop)
        infers = self.worker_spec.compute.inference and not self._board.forbids_inference()
        with self._place.explained():
            sums = self._evaluator.sums(batches, self.row.beat, infers) if is_slice else self._evaluator.scores()
        sums.write(self._board.result(item.id))


def serve(start: Start, channel: socket.socket, leaving: Leaving, make: "Callable[[], Trainer | Loop]") -> int:
    """Run the child; return its exit status. An exception of user code is reported over the socket before the child
    ends. `make` returns a trainer, whose items are pulled, or a loop."""
    loop: Loop | None = None
    try:
        made = make()
        loop = WorkerLoop(start, made, leaving) if isinstance(made, Trainer) else made
        Report("ready", detail=loop.path).send(channel)
        loop.run()
    except ParentGone:
        os._exit(1)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two come only from user code
        is_ours, item = isinstance(error, HogwildError | NonFiniteGradient), loop.item if loop else None
        report = Report(
            "error",
            detail=(f"epoch {item.epoch}: " if item else "") + str(error) if is_ours else raised_text(error),
            error_type=type(error).__name__,
            place=user_frame(error),
            hopeless=is_ours and not isinstance(error, DeviceMemoryError),
            traceback="".join(traceback.format_exception(error)),
            code=error.code if isinstance(error, HogwildError | NonFiniteGradient) else "",
        )
        with contextlib.suppress(ParentGone):
            report.send(channel)
        traceback.print_exc()
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0
