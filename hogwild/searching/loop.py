"""The loop of a search: starts trials, reports their evaluations to the study, ends those that the pruner gives up,
tells how each ended. One process, one thread; it waits for evaluations, ends and signals.

    ask ──► start ──► evaluations ──► report ──► should it be pruned? ── yes ──► SIGTERM ──► checkpoint ──► tell: pruned
              ▲                                     '── no: it goes on ────────► its end ───────────────► tell
              '── killed: resumed from its checkpoint, at most MOST_KILLS times

A trial is in the study before its process starts, and is told after its end: whatever is killed in between, the next
attempt finds it running in the study, and its run directory tells how far it came. Optuna's pruners decide once: a
trial goes on, or is pruned for good. So a promoted trial just goes on, and no epoch is trained twice. When no further
trial begins, it gets the cores that ended ones leave, as further workers, by the request that any running job obeys."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

import optuna
from optuna.trial import TrialState

from hogwild import host
from hogwild.config.schema import Job, Search
from hogwild.errors import RunDirError, RunError
from hogwild.formatting import counted, duration
from hogwild.host import SignalWatch
from hogwild.monitoring.run_status import read_status
from hogwild.searching import study as studies
from hogwild.searching.packing import EVALUATIONS, Packing
from hogwild.searching.study import FAILED, KILLS, PACKING, PRUNED_AT, SPENT_S
from hogwild.searching.trials import MEMORY, REFIT, Evaluations, TrialEnd, TrialStarter, arguments_of
from hogwild.service.attempts import JobProcess
from hogwild.storage.run_files import write_request

LOOK_S = 0.02  # between two looks at the records of running trials
START_S = 0.2  # between two questions whether the fork server has imported torch
MOST_KILLS = 3  # of one trial, in a row, without an evaluation in between
MOST_ALIKE = 3  # trials in a row that fail with the same error


@dataclass(slots=True)
class RunningTrial:
    """A trial in the study that has not been told. `asked`: signals sent to its process."""

    trial: optuna.Trial
    values: Mapping[str, Any]  # field -> value
    evaluations: Evaluations
    process: JobProcess | None = None
    asked: int = 0
    pruned_at: int | None = None
    reported: int = 0
    began_s: float = 0.0
    workers: int = 0  # that it was told to have; 0: it decides itself
    most: int = 0  # workers that it can have without a pause
    needs_room: bool = False  # it had too little memory beside others: it is started again when it is alone

    @property
    def number(self) -> int:
        return self.trial.number


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The end of an attempt of a search: succeeded, or stopped, to be resumed."""

    state: str
    reason: str


class SearchDisplay:
    """The display of a search; this one shows nothing."""

    def show(self, study: optuna.Study, *, is_stopping: bool) -> None:
        """Show the search as it is now."""

    def told(self, study: optuna.Study, number: int) -> None:
        """Show that a trial has ended."""

    def close(self) -> None:
        """Leave the terminal as it was."""


@dataclass(slots=True)
class SearchLoop:
    """One attempt of a search. Main thread only."""

    job: Job
    search: Search
    study: optuna.Study
    starter: TrialStarter
    parallel: int = 1
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields that all trials have besides their values
    display: SearchDisplay = field(default_factory=SearchDisplay)
    after_best: Callable[[], object] = lambda: None
    note: Callable[["SearchLoop"], object] = lambda loop: None  # called in each turn
    packing: Packing | None = None  # where it, not `parallel`, says how many trials run
    most_workers: int = 0  # of a running trial, on all cores; 0: each keeps those that it begins with
    obey: Callable[[], bool] = lambda: False  # answers requests; returns whether this process has other cores now
    say: Callable[[str], object] = lambda message: None
    running: list[RunningTrial] = field(default_factory=list)
    _waiting: list[RunningTrial] = field(default_factory=list)  # begun in an earlier attempt, killed, or paused
    _failures: list[tuple[str, str]] = field(default_factory=list)  # code and cause of the last ones in a row
    _stop: SearchOutcome | None = None
    _error: TrialEnd | None = None
    _is_warm: bool = False
    _may_grow: bool = True  # there is memory for further workers
    _began_s: float = field(default_factory=time.monotonic)
    _spent_s: float = 0.0
    _left: float = 0.0  # trials that may still begin
    _planned: int | None = None  # evaluations of a whole trial: after the last one there is nothing to prune

    def run(self) -> SearchOutcome:
        """Search until all trials have ended, the time is over, or a signal comes. Raises RunError for an error that
        every trial has."""
        self._spent_s = float(self.study.user_attrs.get(SPENT_S, 0.0))
        self._left = studies.most_trials(self.search) - self.count
        self._planned = studies.planned_evaluations(self.job, self.search)
        self._recover()
        self._begin_packing()
        with SignalWatch() as signals:
            try:
                host.raise_noted()  # one that came before the watch; nothing was started
                while True:
                    self._obey(signals)
                    if self.obey() and self._stop is None:
                        self._move()
                    for one in list(self.running):
                        self._look(one)
                    if self._stop is None:
                        self._start()
                        self._share_out()
                    if not self.running and (self._stop is not None or not (self._waiting or self._may_ask())):
                        break
                    self.display.show(self.study, is_stopping=self.is_stopping)
                    self.note(self)
                    host.wait_readable(self._wakers(signals), (LOOK_S if self.running else START_S) * 1000)
            except BaseException:
                self._ask_to_stop(host.TERMINATE, 1)  # each pauses, and is resumed with the search
                raise
            finally:
                self._note_time()
                self.display.show(self.study, is_stopping=self.is_stopping)
        if self._error is not None:
            raise RunError(
                f"{MOST_ALIKE} trials in a row failed with the same error; the search has stopped. It was:\n"
                f"{self._error.error}",
                code=self._error.code or "run/unexpected",
            )
        return self._stop or SearchOutcome("succeeded", f"{counted(self.count, 'trial')}")

    @property
    def count(self) -> int:
        return studies.begun(self.study)

    # ---- begin

    def _recover(self) -> None:
        """Tell the trials that ended while nobody looked; note the others, to be resumed."""
        for trial in studies.unfinished(self.study, self.search.space):
            one = self._made(trial)
            one.reported = max(studies.evaluations_of(trial.storage.get_trial(trial._trial_id)), default=0)
            one.pruned_at = trial.user_attrs.get(PRUNED_AT)
            end = self.starter.end_of(self.starter.run_of(one.number), None, None)
            is_over = end.kind == "done" or (end.kind == "failed" and end.code not in MEMORY)
            if is_over or one.pruned_at is not None:
                self._report(one)
                self._tell(one, end)
            else:
                self._waiting.append(one)

    def _made(self, trial: optuna.Trial) -> RunningTrial:
        run = self.starter.run_of(trial.number)
        values = studies.fields_of(self.search.space, trial.params)
        return RunningTrial(trial, values, Evaluations(run / "metrics.jsonl", [*studies.metrics_of(self.job)]))

    def _may_ask(self) -> bool:
        return self._left > 0 and not studies.is_exhausted(self.study)

    def _start(self) -> None:
        """Start trials while there is room. Until the first one trains, it is alone: it reads and packs the data that
        the others find packed."""
        while len(self.running) < (self.at_a_time if self._is_warm else 1) and (self._waiting or self._may_ask()):
            if self.starter.is_waiting():
                return
            if self._waiting:
                if self._waiting[0].needs_room and self.running:
                    return
                one = self._waiting.pop(0)
            else:
                self._left -= 1
                one = self._made(studies.asked(self.study, self.job))
            one.asked, one.began_s = 0, time.monotonic()
            if self.packing is not None:
                self.packing.trial = one.number if self.packing.trial is None else self.packing.trial
            one.workers = one.most = self.workers
            room: dict[str, Any] = {}
            if one.workers:
                room = {"train.procs": one.workers, "train.procs_max": None}
                if self.most_workers and self._may_grow:
                    room["train.procs_max"] = one.most = max(one.workers, self.most_workers)
            one.process = self.starter.start(
                self.starter.run_of(one.number),
                arguments_of({**self.fixed, **room, **one.values}),
                arguments_of(room),
            )
            self.running.append(one)

    def _share_out(self) -> None:
        """Ask running trials to have as many workers as is right now. The cores that no further trial will use go to
        those that still run. A trial that refuses goes on as it is."""
        left = [one for one in self.running if not one.asked and one.workers and self.workers]
        is_over = len(self.running) < self.at_a_time and not (self._waiting or self._may_ask()) and self._may_grow
        for place, one in enumerate(left):
            part = (self.most_workers + place) // len(left) if is_over else 0  # the last ones get what is left over
            wanted, run = max(part, self.workers), self.starter.run_of(one.number)
            if one.workers == wanted or not self._trains(one):
                continue
            if wanted > one.most:  # the search had fewer cores when it began
                self._signal(one, host.TERMINATE, 1)
            else:
                one.workers = wanted
                with contextlib.suppress(RunDirError):
                    write_request(run, {"ask": "resize", "procs": wanted})

    def count_cores(self) -> None:
        """Decide how many trials run at a time, and with how many workers, on the cores that this process has."""
        job, search, cores = self.job, self.search, host.usable_cores().usable
        self.parallel = parallel_of(job, search, cores)
        self.fixed = fixed_of(job, search, self.parallel, cores)
        self.most_workers = most_workers_of(job, search, cores)
        measured = None if self.packing is None else self.packing.trial
        self.packing = Packing.of(job, search, self.parallel, self.study.user_attrs.get(PACKING))
        if self.packing is not None:
            self.packing.trial = measured

    def _move(self) -> None:
        """Go on with other cores, on which all trials run already: those that are too many pause, the last ones
        first; the others get other workers. A measurement begins again."""
        self.count_cores()
        self._begin_packing()
        measured = None if self.packing is None else self.packing.trial
        left = [one for one in self.running if not one.asked]
        for one in sorted(left, key=lambda one: (one.number != measured, one.number))[self.at_a_time :]:
            self._signal(one, host.TERMINATE, 1)

    def _trains(self, one: RunningTrial) -> bool:
        """Return whether a trial reads requests; before that they are swept."""
        found = read_status(self.starter.run_of(one.number))
        return one.process is not None and found.record.get("pid") == one.process.pid and found.state == "running"

    # ---- trials at a time

    @property
    def workers(self) -> int:
        """Workers of a trial while all run; 0: it decides itself."""
        return self.packing.workers if self.packing else int(self.fixed.get("train.procs", self.most_workers))

    @property
    def at_a_time(self) -> int:
        return self.parallel if self.packing is None else self.packing.trials

    def _begin_packing(self) -> None:
        """Decide at once where there is too little to measure."""
        if self.packing is None or self.packing.why:
            return
        if self._left + len(self._waiting) < 2 * self.packing.most:
            self.packing.give_up("there are few trials")
        elif self._planned is not None and self._planned < EVALUATIONS:
            self.packing.give_up(f"a trial has {counted(self._planned, 'evaluation')}")
        self._note_packing()

    def _is_measured(self, one: RunningTrial) -> bool:
        return self.packing is not None and not self.packing.why and self.packing.trial == one.number

    def _measure(self, at: float) -> None:
        """Note that the measured trial has begun to train, or has evaluated, at this time."""
        assert self.packing is not None
        states = {other.number: read_status(self.starter.run_of(other.number)).state for other in self.running}
        if self.packing.note(at, sorted(number for number, state in states.items() if state == "running")):
            self._ask_to_stop(host.TERMINATE, 1)
        self._note_packing()

    def _note_packing(self) -> None:
        """Say and keep what has been decided, once."""
        if self.packing is not None and self.packing.why and PACKING not in self.study.user_attrs:
            self.study.set_user_attr(PACKING, self.packing.record())
            self.say(f"parallel: {self.packing.words}")

    # ---- while it runs

    def _look(self, one: RunningTrial) -> None:
        assert one.process is not None
        is_dead = one.process.is_dead()  # before its records are read: it writes no more
        self._report(one, may_prune=not is_dead and self._stop is None)
        if not is_dead:
            if not self._is_warm:
                found = read_status(self.starter.run_of(one.number))
                self._is_warm = one.reported > 0 or found.state == "running"
                if self._is_warm and self._is_measured(one) and not one.reported:
                    self._measure(float(found.record["time"]))  # of the clock of its evaluations
            return
        self.running.remove(one)
        pid, status = one.process.pid, one.process.close()
        one.process, self._is_warm = None, True
        end = self.starter.end_of(self.starter.run_of(one.number), pid, status)
        if end.kind == "stopped" and one.asked and one.pruned_at is None:
            if self._stop is None:  # by us, to go on with other workers
                self._waiting = sorted([*self._waiting, one], key=lambda other: other.number)
            return  # paused: it stays in the study as running
        if end.code in MEMORY and self.running and one.pruned_at is None and not one.needs_room:
            one.needs_room = one.most <= one.workers
            self._may_grow = False  # memory for further workers was counted, too
            self._waiting.insert(0, one)
            return
        if end.kind == "killed" and one.pruned_at is None:
            before, reported = one.trial.user_attrs.get(KILLS, (0, 0))
            kills = before + 1 if reported == one.reported else 1
            one.trial.set_user_attr(KILLS, (kills, one.reported))
            if self._stop is not None:
                return
            if kills < MOST_KILLS:
                self._waiting.append(one)
                return
            end = dataclasses.replace(end, reason=f"killed {kills} times: {end.reason}")
        self._tell(one, end)

    def _report(self, one: RunningTrial, *, may_prune: bool = False) -> None:
        """Report what is new, and ask the pruner after each evaluation; what comes after its yes does not count. After
        a resume, evaluations of before are not reported again."""
        for step, values in one.evaluations.new():
            if step <= one.reported or one.pruned_at is not None:
                continue
            studies.report(one.trial, step, values)
            one.reported = step
            if self._is_measured(one):
                if not one.asked:  # after that it trains as before for a moment
                    self._measure(one.evaluations.times[step])
            elif may_prune and len(values) == 1 and step != self._planned and one.trial.should_prune():
                one.pruned_at = step
                one.trial.set_user_attr(PRUNED_AT, step)  # first: if we are killed now, it is not resumed
                self._signal(one, host.TERMINATE, 1)

    # ---- its end

    def _tell(self, one: RunningTrial, end: TrialEnd) -> None:
        """Tell the study how a trial ended. One that was given up is pruned, also if it was done before it heard of it.
        One that failed by its values is told as pruned: Optuna's samplers learn from a pruned trial, and nothing from
        a failed one."""
        frozen = self.study._storage.get_trial(one.trial._trial_id)
        values = studies.best_values(frozen, is_max=studies.is_maximised(self.job))
        before = studies.best_trial(self.study)
        if one.pruned_at is None and end.kind in ("done", "stopped"):
            found = dict(zip_longest(studies.metrics_of(self.job), values, fillvalue=math.nan))
            wrong = [metric for metric, value in found.items() if not math.isfinite(value)]
            if wrong:
                where = "the best" if values else "any"
                one.trial.set_user_attr(FAILED, f"no finite {wrong[0]} in {where} evaluation")
                self.study.tell(one.trial, state=TrialState.PRUNED)
            else:
                self.study.tell(one.trial, values)
        elif end.is_by_values or (one.pruned_at is not None and end.kind != "failed"):
            if end.kind == "failed":
                one.trial.set_user_attr(FAILED, end.reason)
            self.study.tell(one.trial, state=TrialState.PRUNED)
        else:
            one.trial.set_user_attr(FAILED, end.reason or end.kind)
            self.study.tell(one.trial, state=TrialState.FAIL)
        if self.packing is not None and self._is_measured(one):
            self.packing.give_up(f"trial {one.number} ended before")
            self._note_packing()
        self._count_failures(end)
        self._note_time()
        best = studies.best_trial(self.study)
        if best is not None and (before is None or best.number != before.number):
            self.after_best()
        self.display.told(self.study, one.number)

    def _count_failures(self, end: TrialEnd) -> None:
        """Stop the search if the last trials failed alike, and not by their values."""
        if end.kind != "failed" or end.is_by_values:
            self._failures.clear()
            return
        self._failures.append((end.code, end.cause))
        last = self._failures[-MOST_ALIKE:]
        if len(last) == MOST_ALIKE and all(one == other for one, other in pairwise(last)) and self._stop is None:
            self._error = end
            self._pause("failed", "the same error in every trial")

    # ---- its stop

    def _obey(self, signals: SignalWatch) -> None:
        signals.drain()
        if signals.received and self._stop is None:
            self._pause("stopped", host.signal_name(signals.received[0]))
        if len(signals.received) > 1:
            self._ask_to_stop(host.INTERRUPT, 2)  # two of one number could arrive as one
        limit_s = self.search.max_time_s
        if limit_s is not None and self._stop is None and self.spent_s >= limit_s:
            self._pause("stopped", f"max_time_s: {duration(limit_s)}")

    def _pause(self, state: str, reason: str) -> None:
        self._stop = SearchOutcome(state, reason)
        self._ask_to_stop(host.TERMINATE, 1)

    def _ask_to_stop(self, number: int, times: int) -> None:
        for one in self.running:
            self._signal(one, number, times)

    def _signal(self, one: RunningTrial, number: int, times: int) -> None:
        if one.process is not None and one.asked < times:
            one.asked = times
            one.process.send(number)

    @property
    def spent_s(self) -> float:
        """Seconds of this attempt and those before."""
        return self._spent_s + time.monotonic() - self._began_s

    @property
    def progress(self) -> float:
        """The share of the trials, or of the time, that is over; of both the larger one."""
        most, limit_s = studies.most_trials(self.search), self.search.max_time_s
        ended = len(self.study.get_trials(deepcopy=False, states=studies.ENDED))
        shares = [ended / most if math.isfinite(most) else 0.0, self.spent_s / limit_s if limit_s else 0.0]
        return min(1.0, max(shares))

    @property
    def is_stopping(self) -> bool:
        return self._stop is not None

    def _note_time(self) -> None:
        self.study.set_user_attr(SPENT_S, self.spent_s)

    def _wakers(self, signals: SignalWatch) -> Iterator[int]:
        yield signals.fileno()
        yield from (one.process.pidfd for one in self.running if one.process is not None)
        if self.starter.server is not None:
            yield from self.starter.server.descriptors()


def refit(starter: TrialStarter, values: Mapping[str, Any]) -> TrialEnd:
    """Train a job with these values of its fields to its end, in SEARCH/refit; a run that is there already is resumed,
    or was the end. A signal pauses it."""
    run = starter.folder / REFIT
    if (end := starter.end_of(run, None, None)).kind == "done":
        return end
    with SignalWatch() as signals:
        while starter.is_waiting() and not signals.received:
            host.wait_readable(
                [signals.fileno(), *(starter.server.descriptors() if starter.server else ())], START_S * 1000
            )
        process, sent = starter.start(run, arguments_of(values)), 0
        while not process.is_dead():
            for number in (host.TERMINATE, host.INTERRUPT)[sent : len(signals.received)]:
                process.send(number)
                sent += 1
            signals.drain()
            host.wait_readable([signals.fileno(), process.pidfd], START_S * 1000)
        return starter.end_of(run, process.pid, process.close())


def parallel_of(job: Job, search: Search, cores: float) -> int:
    """Return the number of trials at a time: as many as asked for, or as there are cores for. A trial that leaves its
    workers to us has one, if several run. Trials that may be on a GPU run one after the other."""
    if search.parallel != "auto":
        return search.parallel
    if job.train.device != "cpu" and host.gpus():
        return 1
    swept = search.space.get("train.procs")
    procs: Any = (
        max((value for _, value in swept.tested if isinstance(value, int)), default=1) if swept else job.train.procs
    )
    needs = (job.supervise.min_workers if procs == "auto" else max(1, procs)) * (
        1 if job.train.threads == "auto" else job.train.threads
    )
    return max(1, int(cores) // needs)


def most_workers_of(job: Job, search: Search, cores: float) -> int:
    """Return the most workers that a trial may get on all cores; 0 if not all trials can have other numbers of them
    while they run."""
    train, data = job.train, job.data
    given = {f"train.{name}" for name in ("procs", "threads", "pin", "device")}
    given |= {"data.lanes", "data.slots", "supervise.min_workers"}
    is_fixed = train.procs != "auto" or train.pin or data.lanes is not None or data.slots != "auto"
    if is_fixed or given.intersection(search.space) or (train.device != "cpu" and host.gpus()):
        return 0
    return max(job.supervise.min_workers, int(cores) // (1 if train.threads == "auto" else train.threads))


def fixed_of(job: Job, search: Search, parallel: int, cores: float) -> dict[str, Any]:
    """Return the fields that all trials have: the common ones and, where several run, an equal part of the cores for
    each."""
    fixed = studies.common_fields(job)
    if parallel == 1:
        return fixed
    threads = 1 if job.train.threads == "auto" else job.train.threads
    share = max(job.supervise.min_workers, int(cores) // parallel // threads)
    if job.train.procs == "auto" and "train.procs" not in search.space:
        fixed["train.procs"] = share
    if job.train.threads == "auto" and "train.threads" not in search.space:
        fixed["train.threads"] = 1
    return fixed
