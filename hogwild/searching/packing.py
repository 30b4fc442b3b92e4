"""Cores for trials: as many trials at a time as there are cores, of one worker each, or one trial of that many
workers. `parallel: auto` measures it on one trial of the search, whose epochs all count. Pure: events in, ways out.

    first ──► alone ──► packed          the trial is paused, and resumed with its workers, between two ways
    1 worker  N workers 1 worker,       measured: the seconds between two evaluations, by its records, while the same
              │         │ N - 1 others  trials train
              seconds   seconds / N ──► the way that takes less of the machine

Values differ in cost, so one trial is compared with itself. A trial with quick evaluations is packed without a
measurement: most of its time is its start, which further workers do not shorten."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hogwild.config.schema import Job, Search
from hogwild.formatting import counted, duration

FIRST, ALONE, PACKED = "first", "alone", "packed"
WORTH_S = 1.0  # between two evaluations, from which on it is measured; twice, as a busy machine may be slow once
EVALUATIONS = 7  # that a trial needs: 2 in each way, and one more


@dataclass(slots=True)
class Packing:
    """The way in which trials run. `most`: trials at a time, or workers of a trial; `why`: what has decided, "" while
    it is measured; `trial`: the number of the measured one."""

    most: int
    way: str = FIRST
    why: str = ""
    trial: int | None = None
    _is_slow: bool = False  # the first evaluation of the trial took WORTH_S
    _alone_s: float = 0.0
    _since: tuple[float, Sequence[int]] | None = None  # the last evaluation of the trial, and the trials that trained

    @classmethod
    def of(cls, job: Job, search: Search, parallel: int, known: Mapping[str, str] | None) -> "Packing | None":
        """Return it where nothing else decides: `parallel` is auto, and no field says how many workers a trial has.
        `known`: what an earlier attempt of the search has decided."""
        is_given = job.train.procs != "auto" or "train.procs" in search.space or job.data.lanes is not None
        is_given = is_given or job.supervise.min_workers > 1 or "supervise.min_workers" in search.space
        if search.parallel != "auto" or parallel == 1 or is_given:
            return None
        return cls(parallel) if known is None else cls(parallel, known["way"], known["why"])

    @property
    def trials(self) -> int:
        """Trials at a time."""
        return self.most if self.way == PACKED else 1

    @property
    def workers(self) -> int:
        """Workers of each trial."""
        return self.most if self.way == ALONE else 1

    @property
    def words(self) -> str:
        """Trials at a time, and why."""
        if not self.why:
            return f"{self.most} at a time, or 1 with {self.most} workers if that is quicker"
        return f"{self.trials} at a time, {counted(self.workers, 'worker')} each: {self.why}"

    def record(self) -> dict[str, str]:
        return {"way": self.way, "why": self.why, "words": self.words}

    def give_up(self, why: str) -> None:
        """Pack trials without a measurement."""
        self.way, self.why = PACKED, f"not measured: {why}"

    def note(self, at: float, training: Sequence[int]) -> bool:
        """Note that the measured trial has begun to train, or has evaluated, at this time in seconds, while these
        trials trained. Return True if running trials must be paused, to go on in another way."""
        before, self._since = self._since, (at, training)
        if self.why or len(training) != self.trials or before is None or before[1] != training:
            return False
        seconds, self._since = at - before[0], None
        if self.way == FIRST:
            if seconds < WORTH_S:
                self.give_up(f"an evaluation comes every {duration(seconds)}")
            elif not self._is_slow:
                self._is_slow, self._since = True, (at, training)
                return False
            else:
                self.way = ALONE
        elif self.way == ALONE:
            self.way, self._alone_s = PACKED, seconds
        else:
            self.way = PACKED if seconds / self.most <= self._alone_s else ALONE
            self.why = (
                f"trial {self.trial} was evaluated every {duration(seconds)} as one of {self.most}, every "
                f"{duration(self._alone_s)} alone with {self.most} workers"
            )
        return not self.why or self.way == ALONE
