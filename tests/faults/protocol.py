"""The protocol of leases, without torch and at full speed: thousands of deaths a minute, and the books must be right
after each. What is real here: WorkQueue, Scoreboard, Row, Roster, ProcessGroup, Handle, the pipes, WorkerLoop,
Trainer, pauses by the control row, evaluation items. What is not: the mathematics (`protocol_numerics.py`), and that
processes are forked (`protocol_crew.py`). The turn of the loop below is the turn of workers/supervision/supervisor.py,
without its session.

    faults from inside    at a seeded step of a worker's work: killed, stopped, left, raised; poison batches always
    faults from outside   signals at random times, whatever the worker is doing
    meanwhile             workers added and let go, pauses in the middle of items, evaluations, direct and delta in
                          turn, workers that stay parked

`python -m tests.faults.protocol SEED` replays one run; `--kills N` goes on with SEED + 1, … until so many
workers have died of SIGKILL."""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

from hogwild import host
from hogwild.errors import HogwildError
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import BatchPlan, mix
from hogwild.scheduling.work_queue import Kind, Limits, WorkQueue
from hogwild.shared_memory.scoreboard import Command, Phase, Scoreboard, Word
from hogwild.workers.child.spec import Compute, DataSide, DataSpec, Numerics, Rules, WorkerSpec
from hogwild.workers.messages import Task
from hogwild.workers.processes import roster as roster_module
from hogwild.workers.processes.group import Team
from hogwild.workers.processes.handle import Handle, reaped
from hogwild.workers.processes.roster import Death, End, Moment, Role, Roster, RowReading, limits_of
from tests.faults.protocol_crew import BROKEN, ForkedGroup, Nursery
from tests.faults.protocol_scenario import (
    HANG_S,
    Account,
    CountingEvaluator,
    CountingExchange,
    CountingFeed,
    CountingModel,
    CountingUpdate,
    Effects,
    Memory,
    Policy,
    Scenario,
    StillPlace,
    Trouble,
)
from tests.faults.tally import Tally

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
        split = DataSpec((), self.queue.plan, "none")
        rules = Rules(scenario.seed, scenario.accumulate, max_staleness=scenario.max_staleness)
        worker_spec = WorkerSpec(Compute(), DataSide(split, split), rules)
        self._nursery = Nursery(self.board, worker_spec, self._numerics)
        self._group = ForkedGroup(Policy(), self._nursery)
        self._team = CountingTeam(self._group, self)
        self._group.teams.append(self._team)
        self._crew, self._roster = self._team.handles, self._team.roster
        self._ids = count(1)
        self.queue._ids = self._ids
        self._sequence = count(1)
        self._resizes, self.resizes = self._rng.random() < 0.5, 0  # whether, and how many so far
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
        host.ensure_resource_tracker()  # multiprocessing's, once per program
        before, children = host.descriptor_count() - 2, set(host.children(os.getpid()))  # without the lifeline
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
        if left_behind := set(host.children(os.getpid())) - children:
            self._violated(f"processes left behind: {left_behind}")
        tally, ledger = self.tally, self.queue.ledger
        tally.injected = tally.survived = self.deaths.total()
        tally.indeterminate = ledger.indeterminate
        return tally

    def _violated(self, sentence: str) -> None:
        self.tally.violations.append(f"seed {self.scenario.seed}: {sentence}")

    # ---- one turn, as the supervisor's ---------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self._group.wait(WAIT_MS)
        for error in self._group.step(now, [self._team], {Role.WORKER: Moment(paused=bool(self._stage))}):
            raise Violated(f"the roster gives up: {error}")
        if self._resizes and self._rng.random() < 0.02:
            self.queue.limits.procs = self._rng.randint(1, self.scenario.procs)
            self._group.resize(self._team, self.queue.limits.procs)
            self.resizes += 1
        self._advance_pause()
        self._lease_out()
        self._trouble.make(self._crew, now)
        self._look_for_a_hang(now)

    def _lease_out(self) -> None:
        queue = {"": self.queue, "evaluating": self._evaluation}.get(self._stage)
        for worker in self._roster.attached() if queue is not None else ():
            while (item := queue.lease(worker)) is not None:
                self.board.write_item(item)
                self._crew[worker].lease(next(self._sequence), item.id)

    def acknowledge(self, handle: Handle) -> None:
        for skipped, item_id in handle.acks():
            if self.queue.ack(handle.number, item_id, skipped) is None and self._evaluation is not None:
                item = self._evaluation.ack(handle.number, item_id, 0)
                if item is not None:
                    self._sums += EvalSums.read(self.board.result(item.id))

    def lost(self, handle: Handle, how: str) -> Death:
        worker = handle.number
        release = self.queue.release(worker, self.board.progress(worker))
        if self._evaluation is not None:
            self._evaluation.release(worker, self.board.progress(worker, Phase.EVALUATING))
        self.account.enter(release)
        if self.effects.applying[worker] and not release.indeterminate:
            raise Violated(f"worker {worker} died in the middle of an apply, and nothing is in doubt")
        self.effects.applying[worker] = 0
        if how == host.describe_exit(BROKEN):
            raise Violated("a worker could not even begin")
        self.deaths[handle.killed_for.partition(":")[0] or (handle.error.error_type if handle.error else how)] += 1
        self.kills += "SIGKILL" in how or bool(handle.killed_for)
        self._trouble.forget(handle)
        return Death(how, handle.error, release.charged, int(self.board.words[worker, Word.BATCHES]))

    def _dismiss(self) -> None:
        """Everybody leaves, told so by the control row or by the end of the lifeline."""
        if self._rng.random() < 0.5:
            self.board.send(Command.LEAVE)
            for handle in self._team:
                if host.process_status(handle.pid) == "stopped":  # nobody else would end it, and it cannot hear
                    handle.kill()
            self._clean_up()
            return
        self._nursery.cut_lifeline()
        deadline = time.monotonic() + HANG_S
        while len(self._team.handles) and time.monotonic() < deadline:
            self._group.wait(WAIT_MS)
            for handle in self._team:
                if host.process_status(handle.pid) == "stopped":
                    handle.kill()
            for handle in reaped(self._team, 0.01):
                del self._crew[handle.number]
                handle.close()
        if len(self._team.handles):
            raise Violated(f"{len(self._team.handles)} workers do not leave")

    def _clean_up(self) -> None:
        if left := self._group.dismiss([self._team], in_order=True):
            self._violated(f"{len(left)} workers do not leave")
        self._nursery.cut_lifeline()

    # ---- pauses, as workers/supervision/supervisor.py
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
            self._team.book()
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
            self.board.set_exchange(sync_every)
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


class CountingTeam(Team):
    """The workers of a run, as `workers/supervision/supervisor.py`, without its session."""

    def __init__(self, group: ForkedGroup, run: Run) -> None:
        super().__init__(
            group,
            Roster(Role.WORKER, limits_of(Role.WORKER, Policy()), run.scenario.procs, committed_before=True),
        )
        self._run = run

    def prepare(self, number: int) -> tuple[Task, dict[str, Any]]:
        return Task(), {}

    def settle(self, handle: Handle) -> None:
        self._run.acknowledge(handle)

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        handle.listen()
        if handle.error is not None and handle.error.error_type not in ("Crime", "SystemExit"):
            raise Violated(f"our own code raised in a worker: {handle.error.traceback}")
        yield from ()

    def book(self) -> None:
        for handle in self:
            self._run.acknowledge(handle)
        for worker in self.handles:
            progress = self._run.board.progress(worker)
            self._run.queue.observe(progress.item, progress.committed, progress.skipped)

    def readings(self) -> dict[int, RowReading]:
        words = self._run.board.words
        return {
            worker: RowReading(
                beat=int(words[worker, Word.BEAT_NS]),
                batches=int(words[worker, Word.BATCHES]),
                slowest_s=0.0,
                has_lease=bool(self._run.queue.leases_of(worker)),
                idle=int(words[worker, Word.PHASE]) in (Phase.WAITING, Phase.PARKED),
            )
            for worker in self.handles
        }

    def ask_to_leave(self, handle: Handle) -> None:
        handle.wake()

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        assert handle is not None, "the machine refused a process"
        return self._run.lost(handle, how), []


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
    tally, deaths, kills, resizes, began = Tally(), Counter[str](), 0, 0, time.monotonic()
    for run in runs(chosen.seed, chosen.kills):
        tally += run.tally
        deaths += run.deaths
        kills, resizes = kills + run.kills, resizes + run.resizes
    tally.note("kills per s", kills / (time.monotonic() - began))
    found = {
        "tally": tally.as_json(),
        "kills": kills,
        "resizes": resizes,
        "deaths": deaths,
        "has_torch": "torch" in sys.modules,
    }
    print(json.dumps(found))
    for violation in tally.violations:
        print(f"{violation}\nreplay: python -m tests.faults.protocol {violation.split()[1][:-1]}", file=sys.stderr)
    return bool(tally.violations)


if __name__ == "__main__":
    sys.exit(main())
