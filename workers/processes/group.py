"""All child processes of one job. Whatever its role, a process has one life, and this file carries it out; the roster
of its role (`roster.py`, pure) decides.

    forked by the server ── task of its role ──► starts ── "ready" ──► works, beats
                                                                         │
         silent too long ──► its stacks ──► SIGKILL ──► reaped ──► what it held is free again ──► replaced, or given up
         dies by itself ─────────────────────────────────┘
         told to leave ──► finishes what it does ──► reaped                     (resize, the end of the job)

A team is the processes of one role, with what only that role knows: its task, its acknowledgements, its row of beats,
and what a death sets free. Those that read data and try the job's code before there is anything to
train write no file, so a job that is refused leaves nothing behind."""

import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from hogwild import host
from hogwild.config.schema import Supervise
from hogwild.errors import Deadlocked, HogwildError, ModelError
from hogwild.planning.cpu_plan import FILES, FILES_ON_THEIR_WAY, FILES_PER_WORKER, THREADS, Plan
from hogwild.workers.messages import Task
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.handle import REAP_S, Handle, reaped
from hogwild.workers.processes.roster import (
    UNDISTURBED,
    Abandon,
    Action,
    Death,
    End,
    Kill,
    Leave,
    Moment,
    Role,
    Roster,
    RowReading,
    Spawn,
)
from hogwild.workers.processes.stacks import LOOK_MS, Blocked, Stacks
from hogwild.workers.warning_reports import MOST

if TYPE_CHECKING:
    from hogwild.shared_memory.region import Region  # with numpy

LONGEST_WORDS = 300


class EventSink(Protocol):
    """Receiver of a job's events: its journal."""

    def event(self, kind: str, /, **values: Any) -> None: ...
    def show_message(self, message: str) -> None: ...


class KeptEvents:
    """Keeps events and messages until there is a journal."""

    def __init__(self) -> None:
        self._kept: list[Callable[[EventSink], None]] = []

    def event(self, kind: str, /, **values: Any) -> None:
        self._kept.append(lambda sink: sink.event(kind, **values))

    def show_message(self, message: str) -> None:
        self._kept.append(lambda sink: sink.show_message(message))

    def tell(self, sink: EventSink) -> None:
        for tell_one in self._kept:
            tell_one(sink)


class Team:
    """The processes of one role. Subclasses say what only the role knows."""

    is_loud = True  # its processes have logs, and their starts are events

    def __init__(self, group: "ProcessGroup", roster: Roster) -> None:
        self.group, self.roster = group, roster
        self.handles: dict[int, Handle] = {}

    @property
    def role(self) -> Role:
        return self.roster.role

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self.handles.values()))

    def __getitem__(self, number: int) -> Handle:
        return self.handles[number]

    # ---- what a role knows

    def prepare(self, number: int) -> "tuple[Task, Mapping[str, Region]]":
        """Return the task of a new process, and its regions. Its row has no other writer now."""
        raise NotImplementedError

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        """Process what the process has reported; yield errors that fail the job."""
        handle.listen()
        yield from ()

    def settle(self, handle: Handle) -> None:
        """Book the last acknowledgements of a dead process."""

    def book(self) -> None:
        """Book what all have done, after all were listened to."""

    def readings(self) -> dict[int, RowReading]:
        """Return what the processes' rows say; {}: they are not judged by their beats."""
        return {}

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        """Free what a dead process held, and record its death; return it, with errors that fail the job. Its last
        reports are processed. `handle`: None if it could not be started."""
        return Death(how, handle.error if handle else None, end=end), []

    def act(self) -> Iterator[HogwildError]:
        """Do what follows from this turn's events; yield errors that fail the job."""
        yield from ()

    def has_left(self, handle: Handle) -> bool:
        """Return whether a process that ended with status 0 left in order: user code can exit with 0, too."""
        return False

    def ask_to_leave(self, handle: Handle) -> None:
        """Tell a ready process to finish what it does and leave."""

    def waits(self) -> list[str]:
        """Return a line per idle process and what it waits for, for a deadlock message."""
        return []

    # ---- what all have in common

    def rows(self, counted: str, counts: Sequence[int]) -> list[dict[str, object]]:
        """Return a row per process for status.json. `counts`: what each has done, called `counted`."""
        return self.roster.rows({number: handle.pid for number, handle in self.handles.items()}, counted, counts)

    def event(self, what: str, number: int, **values: Any) -> None:
        prefix = "" if self.role is Role.WORKER else f"{self.role}-"
        self.group.sink.event(f"{prefix}{what}", **{self.role.value: number}, **values)


class ProcessGroup:
    """All processes of one job. A context around the whole job: at its end none is left. Main thread only."""

    def __init__(self, supervise: Supervise) -> None:
        self.supervise = supervise
        self.sink: EventSink = KeptEvents()
        self.oom_kills = host.OomKills()
        self.stacks = Stacks()
        self.teams: list[Team] = []
        self.warnings: dict[str, str] = {}  # by their text; with their places
        self.readers = 0  # that may read data before training: one per worker, at most one per core; 0: no processes
        self._planned: Plan | None = None
        self._others = 0  # loaders and communicators, which run beside the workers
        self._is_forked, self._why_fresh = False, ""
        self._lifeline: tuple[int, ...] = ()
        self._undead: list[Handle] = []
        self._tracker_was_known = host.is_tracker_known()  # a notebook may have its own tracker

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lifeline:
            with host.blocked_signals():
                self.dismiss(self.teams, in_order=False)
                for descriptor in self._lifeline:
                    os.close(descriptor)
                self._lifeline = ()
        self.stacks.close()
        self.sink = KeptEvents()  # the group's own reference cycles must not keep the job's memory
        if self._planned is not None and not self._tracker_was_known:
            host.stop_resource_tracker()

    def __iter__(self) -> Iterator[Handle]:
        return (handle for team in self.teams for handle in team)

    def tell(self, sink: EventSink) -> None:
        """Tell the journal what happened before it existed, and everything from now on."""
        kept, self.sink = self.sink, sink
        if isinstance(kept, KeptEvents):
            kept.tell(sink)

    def warn(self, text: str, place: str, *, is_seen: bool = False) -> None:
        """Note a warning of any process of the job, each text once; `is_seen`: it stands on the terminal already."""
        if text in self.warnings or len(self.warnings) >= MOST:
            return
        self.warnings[text] = f"{text} ({place})"
        self.sink.event("warning", why=text, place=place)
        if not is_seen:
            self.sink.show_message(f"warning: {self.warnings[text]}")
        if len(self.warnings) == MOST:
            self.sink.show_message(f"warning: there were {MOST} different warnings; later ones are only in RUN/logs")

    # ---- before training

    def start(self, planned: Plan, loaders: int = 0, communicators: int = 0, *, is_forked: bool = True) -> None:
        """Begin a job of so many workers and loaders; a cluster has a communicator, too. `is_forked`: by the fork
        server, where it can. Raises RunError if the limit on open files, or on processes, is too low."""
        if not planned.procs:
            return
        self._planned, self._is_forked = planned, is_forked
        self._others = loaders + communicators
        here = THREADS + len(host.affinity()) - 1
        host.require_tasks(here + planned.procs * planned.threads + self._others)
        self.raise_file_limit(planned)  # first: a process inherits our limit when it starts
        with host.blocked_signals():
            self._lifeline = os.pipe()
        self.readers = min(planned.procs, max(1, math.floor(planned.usable_cores)))

    def raise_file_limit(self, planned: Plan) -> None:
        """Raise the limit on open files for the whole job, before it has a process. Raises RunError."""
        processes = planned.rows + self._others if planned.procs else 0
        needed = FILES + FILES_PER_WORKER * processes - len(self._lifeline)
        host.raise_file_limit(needed, needed + FILES_ON_THEIR_WAY * planned.rows)

    # ---- one turn

    def wait(self, limit_ms: int, *descriptors: int, is_quiet: bool = False) -> bool:
        """Wait until something happens to a process, or one of the descriptors can be read; return False if nothing
        did. `is_quiet`: acknowledgements may wait."""
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        for handle in self:
            for descriptor in handle.descriptors():
                if not (is_quiet and descriptor == handle.ack_read):
                    poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(LOOK_MS if self.stacks.is_waiting else limit_ms))

    def step(
        self, now: float, teams: Sequence[Team], moments: Mapping[Role, Moment] = MappingProxyType({})
    ) -> list[HogwildError]:
        """Process what happened to these teams, and do what their rosters decide; return errors that fail the job."""
        errors: list[HogwildError] = []
        for team in teams:
            for handle in team:
                was_ready = handle.is_ready
                errors += team.listen(handle)
                if handle.is_ready and not was_ready:
                    team.roster.ready(handle.number)
                    if team.is_loud:
                        found = {"incarnation": handle.incarnation, "pid": handle.pid, "update": handle.update_path}
                        team.event("ready", handle.number, **found)
                if (status := handle.reap()) is not None:
                    errors += team.listen(handle)  # its last reports
                    errors += self._bury(team, handle, status, now)
            team.book()
        errors += self.stacks.advance(now)
        if errors:
            return errors  # nobody is replaced in a job that fails
        for team in teams:
            errors += self._carry_out(team, team.roster.tick(now, team.readings(), moments.get(team.role, UNDISTURBED)))
            errors += team.act()
        return errors

    def resize(self, team: Team, count: int) -> list[HogwildError]:
        """Have `count` processes in the team from now on."""
        return self._carry_out(team, team.roster.resize(count))

    def _bury(self, team: Team, handle: Handle, status: int, now: float) -> list[HogwildError]:
        self.stacks.leave_out(handle)
        left = status == 0 and team.has_left(handle)
        end = team.roster.ending(handle.number, left=left, fenced=bool(handle.killed_for))
        if not (how := handle.killed_for):
            how = "left on SIGTERM" if left else host.describe_exit(status)
            if status == host.KILLED and (words := self.oom_kills.claim()):
                how = words
            how += said_by(handle, end)
        del team.handles[handle.number]
        team.settle(handle)
        death, errors = team.lost(handle.number, handle, end, how)
        handle.close()
        return [*errors, *self._carry_out(team, team.roster.exited(handle.number, now, death))]

    # ---- actions

    def _carry_out(self, team: Team, actions: Iterable[Action]) -> list[HogwildError]:
        errors: list[HogwildError] = []
        for action in actions:
            if isinstance(action, Spawn):
                errors += self._spawn(team, action)
            elif isinstance(action, Kill):
                self._end_silent(team, team[action.worker], action)
            elif isinstance(action, Leave):
                handle = team[action.worker]
                if handle.is_ready:
                    host.kill_by_pidfd(handle.pidfd, host.TERMINATE)
                else:
                    handle.kill("no longer needed")
            elif isinstance(action, Abandon):
                errors += self._abandon(team, team[action.worker])
            elif isinstance(action.error, Deadlocked):
                self._name_the_blocked(team, action.error)
            else:
                errors.append(action.error)
        return errors

    def _spawn(self, team: Team, action: Spawn) -> list[HogwildError]:
        number, incarnation = action.worker, action.incarnation
        if team.role is Role.WORKER and team.roster.slots[number].recent:
            team.event("restart", number, incarnation=incarnation)
        try:
            # An exception between starting a process and storing its handle would lose the process.
            with host.blocked_signals():
                handle = team.handles[number] = self._spawn_process(team.role, number, incarnation)
        except (TimeoutError, InterruptedError):  # the user's: a handler of a signal has raised it
            raise
        except OSError as error:  # no PID, memory or descriptor left
            how, end = f"could not be started: {host.refusal_in_words(error)}", End.COULD_NOT_START
            death, errors = team.lost(number, None, end, how)
            return [*errors, *self._carry_out(team, team.roster.exited(number, time.monotonic(), death))]
        try:
            task, regions = team.prepare(number)
            if team.is_loud and (rundir := self.stacks.rundir) is not None:
                log, stacks = rundir.logs / f"{team.role}-{number}.log", rundir.stacks / f"{team.role}-{number}.txt"
                task = replace(task, log=str(log), stacks=str(stacks))
            handle.send(task, regions)
        except OSError as error:  # too many descriptors in flight: kill it; it is started again later
            handle.kill(f"could not be set up: {error}")
        if team.is_loud:
            team.event("spawn", number, incarnation=incarnation, pid=handle.pid)
        return []

    def _spawn_process(self, role: Role, number: int, incarnation: int) -> Handle:
        if "torch" in sys.modules:
            from hogwild.devices import discovery

            if discovery.cuda_is_initialized():
                raise ModelError(
                    "CUDA was initialised in the supervisor; after that, workers cannot be started safely",
                    code="model/cuda",
                )
        assert self._planned is not None
        environment = self._planned.environment
        handle = Handle.spawn(
            role, number, incarnation, lifeline=self._lifeline[0], environment=environment, is_forked=self._is_forked
        )
        if self._is_forked and SERVER.why not in ("", self._why_fresh):
            self._why_fresh = SERVER.why
            self.sink.event("fresh-interpreter", why=SERVER.why)
        handle.on_warning = self.warn
        return handle

    def _end_silent(self, team: Team, handle: Handle, action: Kill) -> None:
        """Handle a silent process: its stacks first, if it can still write them, then SIGKILL. What it holds is freed
        only after it was reaped; that is the fence: a stopped process must not wake up and write when others have its
        work."""

        def end(blocked: Blocked) -> None:
            where = blocked.get(handle.pid, "")
            reason = f"{action.why}, {where}" if where else action.why
            kind = team.roster.ending(handle.number, left=False, fenced=True).value  # could-not-start or stalled
            team.event("stall", handle.number, pid=handle.pid, kind=kind, why=action.why, blocked=where)
            self.sink.show_message(f"{handle.title} {reason}; it is killed and replaced")
            handle.kill(reason)

        self.stacks.collect([handle], self._with_logs(), f"{handle.title} {action.why}", action.silent_s, end)

    def _abandon(self, team: Team, handle: Handle) -> list[HogwildError]:
        """Handle a killed process that does not die. Its code no longer runs: the kernel acts on the signal before it
        returns to user code. What it held is freed; its row is never reused."""
        self.stacks.leave_out(handle)
        del team.handles[handle.number]
        self._undead.append(handle)
        how = f"{handle.killed_for}; {handle.describe_undead()}"
        self.sink.show_message(f"{handle.title}: it is not replaced")
        team.settle(handle)
        death, errors = team.lost(handle.number, handle, End.STALLED, how)
        return [*errors, *self._carry_out(team, team.roster.abandoned(handle.number, death))]

    def _name_the_blocked(self, team: Team, error: Deadlocked) -> None:
        """Fail a deadlocked job as soon as all have written their stacks, with the call each worker is blocked in."""
        named = {handle.pid: (handle.title, handle.number) for handle in team}

        def fail(blocked: Blocked) -> HogwildError:
            waits = [f"  {words}" for each in self.teams for words in each.waits()]
            lines = [f"  {title}: {blocked.get(pid) or 'unknown'}" for pid, (title, _) in named.items()]
            known = {number: blocked[pid] for pid, (_, number) in named.items() if pid in blocked}
            self.sink.event("deadlock", why=str(error), blocked=known)
            return Deadlocked("\n".join([str(error), *waits, *lines]))

        still_s = self.supervise.deadlock_timeout_s
        self.stacks.collect(team, self._with_logs(), "nobody commits", still_s, fail)

    def _with_logs(self) -> list[Handle]:
        return [handle for handle in self if handle.log is not None]

    # ---- the end

    def end(self, team: Team) -> None:
        """End a team at once."""
        with host.blocked_signals():
            self.dismiss([team], in_order=False)

    def dismiss(
        self, teams: Sequence[Team], *, in_order: bool, is_hurried: Callable[[], bool] = lambda: False
    ) -> list[Handle]:
        """Let all of these teams leave: those ready and `in_order` get their role's time, or less when `is_hurried`,
        then SIGKILL. All are reaped, and what they have done is booked. Return those that survive SIGKILL."""
        for team in teams:
            for handle in team:
                if handle.is_ready:
                    team.ask_to_leave(handle)
                else:
                    handle.kill()
        for team in teams:
            self._reap([team], team.roster.limits.leave_s if in_order else 0.0, is_hurried)
        for team in teams:
            for handle in team:
                handle.kill()
        self._reap(teams, REAP_S, lambda: False)
        self._undead += [handle for team in teams for handle in team]
        for team in teams:
            team.handles.clear()
        self.teams = [team for team in self.teams if team not in teams]
        for handle in self._undead[:]:
            if handle.reap() is not None:
                self._undead.remove(handle)
                handle.close()
            else:
                handle.disown()
        return list(self._undead)

    @staticmethod
    def _reap(teams: Sequence[Team], limit_s: float, gives_up: Callable[[], bool]) -> None:
        homes = {handle.pid: team for team in teams for handle in team}
        for handle in reaped([handle for team in teams for handle in team], limit_s, gives_up):
            team = homes[handle.pid]
            team.settle(handle)
            del team.handles[handle.number]
            handle.close()


def said_by(handle: Handle, end: End) -> str:
    """Return the last line of a process that died before it had a log and could not report."""
    words = handle.last_output() if end is End.COULD_NOT_START and handle.error is None else ""
    return f" ({shortened(words)})" if words else ""


def shortened(words: str) -> str:
    """Return the first line of an exception, for the terminal; the log has all of it."""
    line = words.partition("\n")[0]
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"
