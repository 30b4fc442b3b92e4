"""The protocol of leases, without torch and at full speed: thousands of deaths a minute, and the books must be right
after each. What is real here: WorkQueue, Scoreboard, Row, Roster, Handle, the pipes, WorkerLoop, Trainer, pauses by the
control row, evaluation items. What is not: the mathematics (`protocol_numerics.py`), and that processes are forked
(`protocol_crew.py`). The turn of the loop below is the turn of workers/supervision/supervisor.py, without its session.

    faults from inside    at a seeded step of a worker's work: killed, stopped, left, raised; poison batches always
    faults from outside   signals at random times, whatever the worker is doing
    meanwhile             pauses in the middle of items, evaluations, direct and delta in turn, workers that stay parked

`python -m tests.faults.protocol SEED` replays one run; `--kills N` goes on with SEED + 1, … until so many
workers have died of SIGKILL."""

import argparse
import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

from hogwild import host
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.seeds import mix
from hogwild.scheduling.work_queue import Kind, Limits, WorkQueue
from hogwild.shared_memory.scoreboard import Command, Phase, Scoreboard, Word
from tests.faults.protocol_crew import BROKEN, Nursery
from tests.faults.protocol_numerics import (
    CountingEvaluator,
    CountingExchange,
    CountingFeed,
    CountingModel,
    CountingUpdate,
    Effects,
    Memory,
    StillPlace,
)
from tests.faults.protocol_scenario import HANG_S, Account, Policy, Scenario
from tests.faults.protocol_trouble import Trouble
from tests.faults.tally import Tally
from workers.child.spec import Compute, DataSide, DataSpec, Numerics, Rules, WorkerSpec
from workers.processes import roster as roster_module
from workers.processes.handle import Handle
from workers.processes.roster import Abandon, Action, Kill, Roster, RowReading, Spawn
from workers.processes.setbacks import Death

WAIT_MS = 2


class Violated(Exception):
    """An invariant; the run cannot go on."""


class Run:
    """One scenario from its first lease to the last death."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.deaths: Counter[str] = Counter()
        self.kills = 0  # deaths of SIGKILL, wherever it came from
        self.tally = Tally()
        self.queue = scenario.queue()
        self.effects = Effects(scenario.procs, scenario.batches * scenario.epochs)
        self.account = Account(scenario)
        self._rng = random.Random(mix(scenario.seed, 2))
        self.board = Scoreboard(Memory(Scoreboard.nbytes(scenario.procs)), scenario.procs)  # type: ignore[arg-type]
        self.board.set_exchange(scenario.sync_every)
        self._roster = Roster(scenario.procs, Policy(), committed_before=True)
        split = DataSpec((), self.queue.plan, "none")
        rules = Rules(scenario.seed, scenario.accumulate, max_staleness=scenario.max_staleness)
        worker_spec = WorkerSpec(Compute(), DataSide(split, split), rules)
        self._nursery = Nursery(self.board, worker_spec, self._numerics)
        self._crew: dict[int, Handle] = {}
        self._ids = count(1)
        self.queue._ids = self._ids
        self._sequence = count(1)
        self._pauses = 0
        self._stage = ""  # of the pause that is on
        self._evaluation: WorkQueue | None = None
        self._sums = EvalSums()
        self._evaluated = 0
        self._trouble = Trouble(self._rng, scenario.fault_every_s)
        self._moved = (time.monotonic(), 0)

    def _numerics(self, worker: int, incarnation: int) -> Numerics:
        scenario, crimes = self.scenario, self.scenario.crimes(worker, incarnation)
        exchange = CountingExchange(self.effects, worker, crimes)
        update = CountingUpdate(exchange, crimes, set(scenario.not_finite), scenario.spin)
        feed = CountingFeed(scenario.batches, crimes)
        return Numerics(CountingModel(exchange), update, feed, CountingEvaluator(crimes), StillPlace())  # type: ignore[arg-type]

    def go(self) -> Tally:
        before = host.descriptor_count() - 2  # the lifeline
        try:
            while not (self.queue.is_finished and self._evaluated == self.scenario.epochs and not self._stage):
                self._turn(time.monotonic())
            self._dismiss()
        except Violated as violation:
            self._violated(str(violation))
        finally:
            self._clean_up()
        for sentence in self.account.violations(self.queue, self.effects):
            self._violated(sentence)
        if (left := host.descriptor_count() - before) != 0:
            self._violated(f"{left} descriptors left open")
        if children := host.children(os.getpid()):
            self._violated(f"processes left behind: {children}")
        tally, ledger = self.tally, self.queue.ledger
        tally.injected = tally.survived = self.deaths.total()
        tally.indeterminate = ledger.indeterminate
        return tally

    def _violated(self, sentence: str) -> None:
        self.tally.violations.append(f"seed {self.scenario.seed}: {sentence}")

    # ---- one turn, as the supervisor's ---------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self._wait()
        for handle in list(self._crew.values()):
            self._listen(handle)
            if (status := handle.reap()) is not None:
                self._bury(handle, status, now)
        self._book()
        self._carry_out(self._roster.tick(now, self._readings(), paused=bool(self._stage)))
        self._advance_pause()
        self._lease_out()
        self._trouble.make(self._crew, now)
        self._look_for_a_hang(now)

    def _wait(self) -> None:
        poll = select.poll()
        for handle in self._crew.values():
            for descriptor in (handle.pidfd, handle.ack_read, handle.channel.fileno()):
                poll.register(descriptor, select.POLLIN)
        poll.poll(WAIT_MS)

    def _listen(self, handle: Handle) -> None:
        was_ready = handle.is_ready
        handle.listen()
        if handle.is_ready and not was_ready:
            self._roster.ready(handle.worker)
        if handle.error is not None and handle.error.error_type not in ("Crime", "SystemExit"):
            raise Violated(f"our own code raised in a worker: {handle.error.traceback}")

    def _book(self) -> None:
        for handle in self._crew.values():
            self._acknowledge(handle)
        for worker in self._crew:
            progress = self.board.progress(worker)
            self.queue.observe(progress.item, progress.committed, progress.skipped)

    def _acknowledge(self, handle: Handle) -> None:
        for skipped, item_id in handle.acks():
            if self.queue.ack(handle.worker, item_id, skipped) is None and self._evaluation is not None:
                item = self._evaluation.ack(handle.worker, item_id, 0)
                if item is not None:
                    self._sums += EvalSums.read(self.board.result(item.id))

    def _readings(self) -> dict[int, RowReading]:
        words = self.board.words
        return {
            worker: RowReading(
                beat=int(words[worker, Word.BEAT_NS]),
                batches=int(words[worker, Word.BATCHES]),
                slowest_s=0.0,
                has_lease=bool(self.queue.leases_of(worker)),
                idle=int(words[worker, Word.PHASE]) in (Phase.WAITING, Phase.PARKED),
            )
            for worker in self._crew
        }

    def _lease_out(self) -> None:
        queue = {"": self.queue, "evaluating": self._evaluation}.get(self._stage)
        for worker in self._roster.attached() if queue is not None else ():
            while (item := queue.lease(worker)) is not None:
                self.board.write_item(item)
                self._crew[worker].lease(next(self._sequence), item.id)

    # ---- births and deaths ---------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                self.board.renew(action.worker, action.incarnation)
                self._crew[action.worker] = self._nursery.spawn(action.worker, action.incarnation)
            elif isinstance(action, Kill):
                self._crew[action.worker].kill(action.why)
            elif not isinstance(action, Abandon):  # a busy machine: it will be reaped all the same
                raise Violated(f"the roster gives up: {action.error}")

    def _bury(self, handle: Handle, status: int, now: float) -> None:
        """The order is the point: reaped already; now the acknowledgements, then the row, then the leases."""
        worker = handle.worker
        self._acknowledge(handle)
        self._listen(handle)
        release = self.queue.release(worker, self.board.progress(worker))
        if self._evaluation is not None:
            self._evaluation.release(worker, self.board.progress(worker, Phase.EVALUATING))
        self.account.enter(release)
        if self.effects.applying[worker] and not release.indeterminate:
            raise Violated(f"worker {worker} died in the middle of an apply, and nothing is in doubt")
        self.effects.applying[worker] = 0
        if status == BROKEN:
            raise Violated("a worker could not even begin")
        name = signal.Signals(-status).name if status < 0 else f"exit({status})"
        how = handle.killed_for.partition(":")[0] or (handle.error.error_type if handle.error else name)
        self.deaths[how] += 1
        self.kills += status == -signal.SIGKILL
        self._forget(handle)
        batches = int(self.board.words[worker, Word.BATCHES])
        self._carry_out(self._roster.exited(worker, now, Death(how, handle.error, release.charged, batches)))

    def _forget(self, handle: Handle) -> None:
        self._trouble.forget(handle)
        del self._crew[handle.worker]
        handle.close()

    def _dismiss(self) -> None:
        """Everybody leaves, told so by the control row or by the end of the lifeline."""
        if self._rng.random() < 0.5:
            self.board.send(Command.LEAVE)
            for handle in self._crew.values():
                handle.wake()
        else:
            self._nursery.cut_lifeline()
        deadline = time.monotonic() + HANG_S
        while self._crew and time.monotonic() < deadline:
            self._wait()
            for handle in list(self._crew.values()):
                if host.process_status(handle.pid) == "stopped":  # nobody else would end it, and it cannot hear
                    handle.kill()
                if handle.reap() is not None:
                    self._forget(handle)
        if self._crew:
            raise Violated(f"{len(self._crew)} workers do not leave")

    def _clean_up(self) -> None:
        for handle in list(self._crew.values()):
            handle.kill()
            host.wait_readable([handle.pidfd], HANG_S * 1000)
            handle.reap()
            self._forget(handle)
        self._nursery.cut_lifeline()

    # ---- pauses, as workers/supervision/pauses.py
    # ----------------------------------------------------------------------------

    def _advance_pause(self) -> None:
        is_barrier = self.queue.is_epoch_settled(self.queue.open_until - 1)
        if not self._stage:
            if is_barrier or self._rng.random() < 0.01:
                self._pauses += 1
                self._stage = "parking"
                self.board.send(Command.PAUSE, self._pauses)
                self._wake_all()
            return
        if self._stage == "parking":
            attached = self._roster.attached()
            if self._roster.is_anyone_dying or any(self._crew[k].parked_in != self._pauses for k in attached):
                return
            self._book()
            self._look_at_rest()
            if not self.queue.is_epoch_settled(self.queue.open_until - 1):
                self._resume()
            else:
                self._begin_evaluation()
        elif self._evaluation is not None and self._evaluation.is_finished:
            self._end_evaluation()
            self._resume()

    def _look_at_rest(self) -> None:
        """Everybody is parked, or dead and buried: the flats hold what the ledger says, nothing is under way."""
        for sentence in self.account.violations(self.queue, self.effects):
            self._violated(f"in pause {self._pauses}: {sentence}")

    def _begin_evaluation(self) -> None:
        self._stage, self._sums = "evaluating", EvalSums()
        limits = Limits(self.scenario.procs, max_attempts=10**6, max_item_updates=4)
        plan = BatchPlan(self.scenario.val_batches, 1)
        self._evaluation = WorkQueue(plan, limits, kind=Kind.EVALUATE, ids=self._ids)

    def _end_evaluation(self) -> None:
        """Every slice counts once, whoever died over it."""
        size = self.scenario.val_batches
        if self._sums.words[:2] != (size * (size - 1) / 2, size):
            self._violated(f"an evaluation of {size} batches adds up to {self._sums}")
        self._evaluation = None
        self._evaluated += 1
        self.queue.open_until = min(self.queue.limits.epochs, self.queue.epoch + 1)

    def _resume(self) -> None:
        if self._rng.random() < 0.5:
            sync_every = self._rng.choice([0, 0, 2, 5])
            active = self._rng.choice([0, 0, 1, 2]) if len(self._roster.attached()) == self.scenario.procs else 0
            self.board.set_exchange(sync_every, active)
            self.queue.limits.sync_every = sync_every or 1
        self._stage = ""
        self.board.send(Command.RUN, self._pauses)
        self._wake_all(over=self._pauses)

    def _wake_all(self, over: int = 0) -> None:
        for handle in self._crew.values():
            handle.wake(over)

    # ---- nets -------------------------------------------------------------------------------------------------------

    def _look_for_a_hang(self, now: float) -> None:
        moved = self.queue.ledger.finished + self.deaths.total() + self._evaluated + self._pauses
        if moved != self._moved[1]:
            self._moved = (now, moved)
        elif now - self._moved[0] > HANG_S:
            self.tally.hangs += 1
            raise Violated(f"nothing has moved for {HANG_S:g} s: {self.queue.ledger}, stage {self._stage!r}")


def runs(seed: int, kills: int) -> Iterator[Run]:
    """Runs of the seeds from `seed` on until so many workers have died of SIGKILL; at least one."""
    killed = 0
    for each in count(seed):
        run = Run(Scenario.of(each))
        run.go()
        yield run
        killed += run.kills
        if killed >= kills or run.tally.violations:
            return


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--kills", type=int, default=0)
    chosen = parser.parse_args()
    roster_module.FIRST_BACKOFF_S, roster_module.LONGEST_BACKOFF_S = 0.001, 0.01
    tally, deaths, kills, began = Tally(), Counter[str](), 0, time.monotonic()
    for run in runs(chosen.seed, chosen.kills):
        tally += run.tally
        deaths += run.deaths
        kills += run.kills
    tally.note("kills per s", kills / (time.monotonic() - began))
    found = {"tally": tally.as_json(), "kills": kills, "deaths": deaths, "has_torch": "torch" in sys.modules}
    print(json.dumps(found))
    for violation in tally.violations:
        print(f"{violation}\nreplay: python -m tests.faults.protocol {violation.split()[1][:-1]}", file=sys.stderr)
    return bool(tally.violations)


if __name__ == "__main__":
    sys.exit(main())
