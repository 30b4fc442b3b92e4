"""The loaders of streamed data, as the supervisor sees them: asked to fill slots, judged by their beats, replaced when
they die. Driven once per turn of the supervisor's loop; a roster decides who should live, as for workers.

    answer FILLED, ENDED      the schedule notes it; a worker may have the batch, or the epoch has its end
    a batch cannot be read    a failed attempt; after `max_item_attempts` it is quarantined
    a loader dies             its requests are made again; the slot it was filling is charged
    no loader is left         the job fails (for an iterable, each loader reads its own shard: all are needed)"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import cloudpickle

from hogwild import host
from hogwild.errors import DataError, HogwildError
from hogwild.feeds.ring import LoaderBeat
from hogwild.scheduling.stream_schedule import SlotRequest
from hogwild.shared_memory.region import Region
from workers.child.loader import ENDED, LEAVE
from workers.messages import LOOK, LoadTask, Report
from workers.processes.handle import REAP_S, Handle, reaped
from workers.processes.roster import Abandon, Action, Fail, Kill, Roster, RowReading, Spawn
from workers.processes.setbacks import Death, End, Setbacks
from workers.session.ring_state import RingState
from workers.session.session import Session

LEAVE_S = 1.0  # time for user code to end in order


class Loaders:
    """The loaders of one job. `step` returns an error if the job cannot go on."""

    def __init__(self, session: Session, state: RingState, recruit: Callable[[], Handle]) -> None:
        self._session, self._state, self._recruit = session, state, recruit
        self._ring, self._schedule = state.ring, state.schedule
        supervise = session.job.supervise
        count, has_committed = state.loaders, session.queue.samples > 0
        needed = count if state.schedule.is_sharded else 1
        self.roster = Roster(count, supervise, has_committed, by_records=True, needed=needed)
        self._setbacks = Setbacks(count, supervise, has_committed, noun="loader")
        self._attempts = supervise.max_item_attempts
        self._handles: dict[int, Handle] = {}
        self._filled = [0] * count
        content = cloudpickle.dumps((state.stream, self._ring.spec))
        self._regions = {"ring": self._ring.region, "stream": Region.of_bytes("stream", content)}
        self._stream_nbytes = len(content)

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self._handles.values()))

    @property
    def filled(self) -> int:
        """Batches filled in this attempt."""
        return sum(self._filled)

    @property
    def is_busy(self) -> bool:
        """True if a loader reads or is being started: loaders' own clocks judge that."""
        return self.roster.is_anyone_missing or any(map(self._schedule.has_in_hand, self._handles))

    def waits(self) -> list[str]:
        """Return a line per loader without a request and what it waits for, for a deadlock message."""
        schedule, ring = self._schedule, self._ring
        idle = [handle.title for handle in self if not schedule.has_in_hand(handle.worker)]
        held = f"{schedule.filled_slots} of {ring.spec.slots} slots are filled"
        epochs = ", ".join(map(str, sorted(schedule.open_epochs))) or "none"
        return [f"{title}: waits for something to read ({held}; epochs being read: {epochs})" for title in idle]

    def rows(self) -> list[dict[str, object]]:
        """Return a row per loader for status.json."""
        return self.roster.rows({handle.worker: handle.pid for handle in self}, "batches", self._filled)

    # ---- one turn

    def step(self, now: float) -> HogwildError | None:
        """Process what happened, and send new requests."""
        errors: list[HogwildError] = []
        for handle in self:
            errors += self._listen(handle)
            if (status := handle.reap()) is not None:
                errors += self._listen(handle)
                errors += self._carry_out(self._handle_death(handle, status, now))
        errors += self._carry_out(self.roster.tick(now, self._readings(), paused=False))
        if (wrong := self._state.check()) is not None:
            errors.append(wrong)
        self._ask()
        return errors[0] if errors else None

    def _ask(self) -> None:
        for loader in self.roster.attached():
            while (request := self._schedule.request(loader)) is not None:
                self._state.write(request)
                self._handles[loader].lease(0, request.slot + 1)

    def _listen(self, handle: Handle) -> Iterator[HogwildError]:
        """Process the answers of a loader; yield errors that fail the job."""
        was_ready = handle.is_ready
        handle.listen()
        if handle.is_ready and not was_ready:
            self.roster.ready(handle.worker)
            incarnation = handle.incarnation
            self._session.journal.event("loader-ready", loader=handle.worker, incarnation=incarnation, pid=handle.pid)
        for answer, number in handle.acks():
            self._handle_answer(handle.worker, answer, number - 1)
        said, handle.said_as_reader = handle.said_as_reader, []
        for report in said:
            if (error := self._refused(handle.worker, report)) is not None:
                yield error

    def _handle_answer(self, loader: int, answer: int, slot: int) -> None:
        if answer == ENDED:
            if self._schedule.ended(loader, slot) is not None:
                self._session.queue.find_ends()
        elif self._state.filled(loader, slot):
            self._filled[loader] += 1

    def _readings(self) -> dict[int, RowReading]:
        words = self._ring.loaders
        return {
            handle.worker: RowReading(
                beat=int(words[handle.worker, LoaderBeat.COUNT]),
                batches=self._filled[handle.worker],
                slowest_s=int(words[handle.worker, LoaderBeat.SLOWEST_NS]) / 1e9,
                has_lease=self._schedule.has_in_hand(handle.worker),
                idle=bool(words[handle.worker, LoaderBeat.WAITING]),
            )
            for handle in self
        }

    # ---- failures

    def _refused(self, loader: int, report: Report) -> HogwildError | None:
        """Handle a batch that cannot be read; return the error if it fails the job."""
        found = self._schedule.failed(loader, report.item - 1)
        if found is None:
            return None
        request, attempts = found
        self._session.journal.event(
            "bad-batch", loader=loader, epoch=request.epoch, batch=request.batch, attempts=attempts, why=report.detail
        )
        trace = f"\n\n{report.traceback.rstrip()}" if report.traceback else ""
        error = DataError(f"{report.detail}{trace}", code=report.code)
        death = Death("", replace(report, kind="error"), (request.epoch, request.batch))
        if self._setbacks.hopeless(death, sum(self._filled), in_set_up=False) is not None:
            return error
        if attempts < self._attempts:
            return None
        return error if self._schedule.is_sharded else self._give_up(request, report.detail)

    def _give_up(self, request: SlotRequest, why: str) -> HogwildError | None:
        """Quarantine an unreadable batch and the update it belongs to."""
        session = self._session
        release = session.queue.give_up(request.epoch, self._schedule.give_up(request))
        for epoch, start, stop in release.quarantined:
            session.journal.event("quarantined", epoch=epoch, start=start, stop=stop, why=why)
            session.journal.show_message(f"quarantined: epoch {epoch}, batches {start} to {stop - 1}: {why}")
        return session.check_quarantine(release)

    def _handle_death(self, handle: Handle, status: int, now: float) -> list[Action]:
        loader = handle.worker
        end = self.roster.ending(loader, left=False, fenced=bool(handle.killed_for))
        how = handle.killed_for or host.describe_exit(status)
        if end is End.COULD_NOT_START and handle.error is None and (said := handle.last_output()):
            how = f"{how} ({said})"
        del self._handles[loader]
        log, error = handle.log, handle.error
        handle.close()
        return self._decide(loader, Death(f"{how}; see {log}", error, end=end), handle.pid, now)

    def _decide(self, loader: int, death: Death, pid: int, now: float, *, is_dead: bool = True) -> list[Action]:
        self._state.deaths += 1
        session, words = self._session, self._ring.loaders[loader]
        number, record = int(words[LoaderBeat.SLOT]), int(words[LoaderBeat.RECORD])
        found = self._schedule.lost(loader, number - 1 if number else None)
        charged = None if found is None else (found[0].epoch, found[0].batch)
        said = death.report.detail if death.report is not None else death.how
        session.journal.event(
            "loader-exit", loader=loader, pid=pid, kind=death.end.value, how=death.how, charged=charged
        )
        session.journal.show_message(f"loader {loader} (pid {pid}): {said}; its batches are read again")
        actions: list[Action] = []
        is_excused = False
        if found is not None and found[1] >= self._attempts:
            ended = f"{found[1]} loaders, the last one" if found[1] > 1 else "its loader"
            what = f"reading record {record} (epoch {found[0].epoch}, batch {found[0].batch}) crashed {ended}: {said}"
            error: HogwildError | None = DataError(f"{self._state.stream.what}: {what}", code="data/item-kills")
            if not self._schedule.is_sharded:
                error, is_excused = self._give_up(found[0], what), True
            actions += [Fail(error)] if error is not None else []
        death = replace(death, charged=charged, batches=self._filled[loader], is_excused=is_excused)
        actions += self.roster.exited(loader, now, death) if is_dead else self.roster.abandoned(loader, death)
        return actions

    def _carry_out(self, actions: list[Action]) -> Iterator[HogwildError]:
        for action in actions:
            if isinstance(action, Spawn):
                yield from self._spawn(action)
            elif isinstance(action, Kill):
                handle = self._handles[action.worker]
                self._session.journal.event("loader-stall", loader=action.worker, pid=handle.pid, why=action.why)
                self._session.journal.show_message(f"{handle.title} {action.why}; it is killed and replaced")
                handle.kill(action.why)
            elif isinstance(action, Abandon):
                handle = self._handles.pop(action.worker)
                handle.disown()
                death = Death(f"{handle.killed_for}; {handle.describe_undead()}", end=End.STALLED)
                yield from self._carry_out(
                    self._decide(action.worker, death, handle.pid, time.monotonic(), is_dead=False)
                )
            else:
                yield action.error

    def _spawn(self, action: Spawn) -> Iterator[HogwildError]:
        session, loader = self._session, action.worker
        self._ring.loaders[loader] = 0  # the row's writer is dead
        try:
            handle = self._recruit()
        except OSError as error:
            how = f"could not be started: {error}"
            session.journal.event("loader-exit", loader=loader, kind=End.COULD_NOT_START.value, how=how)
            death = Death(how, end=End.COULD_NOT_START)
            yield from self._carry_out(self.roster.exited(loader, time.monotonic(), death))
            return
        self._handles[loader] = handle
        try:
            log, stacks = session.rundir.log_of("loader", loader), session.rundir.stacks_of("loader", loader)
            task = LoadTask(loader, self._stream_nbytes, str(log), str(stacks))
            handle.ask_to_load(task, self._regions, action.incarnation)
        except OSError as error:
            handle.kill(f"could not be set up: {error}")
        session.journal.event("loader-spawn", loader=loader, incarnation=action.incarnation, pid=handle.pid)

    # ---- the end

    def dismiss(self) -> list[Handle]:
        """Let all loaders leave, or kill them. Return those that survive SIGKILL."""
        for handle in self:
            if handle.is_ready:
                handle.lease(LEAVE, LOOK)
            else:
                handle.kill()
        self._reap(LEAVE_S)
        for handle in self:
            handle.kill()
        self._reap(REAP_S)
        for handle in self:
            handle.disown()
        return list(self)

    def _reap(self, limit_s: float) -> None:
        for handle in reaped(self, limit_s):
            del self._handles[handle.worker]
            handle.close()
