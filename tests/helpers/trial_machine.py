"""Workers that commit batches at a given pace on a real scoreboard, and a supervisor that measures them; the test turns
the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hogwild.shared_memory.scoreboard import Command, Control, Scoreboard, Word
from workers.session.exchange_trial import BOTH, WARM_BATCHES, ExchangeTrial, Verdict, Way

DIRECT, DELTA, SOLO = Way.DIRECT, Way.DELTA, Way.SOLO
PLENTY_S = 1e6  # of the job is left
STEP_S = 1 / 64


@dataclass
class Machine:
    """Workers and supervisor in one: `pace` is what one worker commits per second in each way. Time is counted in
    64ths of a second, which floats hold exactly."""

    pace: Mapping[Way, float]
    ways: Sequence[Way] = BOTH
    given: str | None = None
    procs: int = 2
    sync_every: int = 8
    now: float = 1.0
    left_s: float = PLENTY_S
    applied: Mapping[Way, int] = field(default_factory=dict)  # one of so many updates; the others are dropped
    said: list[Way] = field(default_factory=list)
    lengths_s: list[float] = field(default_factory=list)
    pauses: int = 0

    def __post_init__(self) -> None:
        self.board = Scoreboard.allocate(self.procs)
        self.trial = ExchangeTrial(self.board, self.board.procs, self.ways, self.given, self.sync_every, "as given")
        self.dead: set[int] = set()
        self.partial = [0.0] * self.procs

    @property
    def way(self) -> Way:
        if self.board.control[Control.ACTIVE]:
            return SOLO
        return DELTA if self.board.control[Control.SYNC_EVERY] else DIRECT

    def work(self, seconds: float = STEP_S, *, count: bool = True) -> None:
        self.now += seconds
        active = 1 if self.way is SOLO else self.procs
        for worker in set(range(active)) - self.dead:
            words = self.board.words[worker]
            self.partial[worker] += seconds * self.pace[self.way]
            fresh = int(self.partial[worker])
            self.partial[worker] -= fresh
            words[Word.BUSY_NS] += int(seconds * 1e9)
            if fresh and count:
                words[Word.BATCHES] += fresh
                words[Word.UPDATES] = words[Word.UPDATES] + fresh // self.applied.get(self.way, 1)
                words[Word.LAST_NS] = round(self.now * 1e9)

    def is_due(self) -> bool:
        return self.trial.is_due(self.now, all_train=True, left_s=self.left_s)

    def warm_up(self) -> "Machine":
        while min(self.board.batches()) < WARM_BATCHES:
            assert not self.is_due()
            self.work()
        return self

    def pause(self) -> int | None:
        """As pauses.py does it: everybody alive parks, the slice ends, the next begins."""
        self.pauses += 1
        self.board.send(Command.PAUSE, self.pauses)
        for worker in set(range(self.procs)) - self.dead:
            self.board.words[worker, Word.PARKED] = self.pauses
        self.trial.end_slice(self.now)
        answer = self.trial.start_slice(self.now)
        if answer is not None:
            self.said.append(self.way)
        self.board.send(Command.RUN, self.pauses)
        return answer

    def slice(self) -> None:
        """Works until the slice that is on is over; it is not ended yet."""
        began = self.now
        while not self.is_due():
            self.work()
        self.lengths_s.append(self.now - began)

    def measure(self) -> Verdict:
        """From the first pause to the verdict."""
        assert self.is_due()
        self.pause()
        while not self.trial.is_over:
            self.slice()
            self.pause()
        assert self.trial.verdict is not None
        return self.trial.verdict
