"""Loaders as the parent sees them: asked to fill slots of a stream (`supervision/supervisor.py`) or ranges of rows
(`loading.py`), judged by their beats, replaced when they die.

    answer FILLED, ENDED      the work notes it; of a stream a worker may have the batch, or the epoch has its end
    a number cannot be filled "bad-batch": the work decides what that means
    a loader dies             what it was asked for is free again; the number it was filling is charged"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hogwild import by_value, host
from hogwild.errors import DataError, HogwildError
from hogwild.shared_memory.region import Region
from hogwild.workers.child.loader import BEATS, LoaderBeat
from hogwild.workers.messages import LOOK, LoadTask, Report
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Death, End, Role, Roster, RowReading


def region_of(name: str, thing: Any) -> Region:
    """Return an object in shared memory, written so that its tensors can be mapped. Raises what pickling it raises."""
    descriptor = os.memfd_create(f"hogwild-{name}", os.MFD_CLOEXEC)
    try:
        torch.save(thing, host.path_of(descriptor), pickle_module=by_value)
    except BaseException:
        os.close(descriptor)
        raise
    return Region.attach(descriptor, os.fstat(descriptor).st_size)


@dataclass(frozen=True, slots=True)
class LoaderLoss:
    """Leavings of a dead loader. `charged`: (epoch, batch) that it was filling; `is_excused`: that was given up;
    `error`: fails the job."""

    charged: tuple[int, int] | None = None
    is_excused: bool = False
    error: HogwildError | None = None


class Work(Protocol):
    """Work that loaders are given, in numbers from 1."""

    again: str  # what happens to the work of a dead one, for messages

    def request(self, loader: int) -> int | None:
        """Return the next number for this loader, None if it has enough for now or nothing is left."""

    def answered(self, loader: int, answer: int, number: int) -> bool:
        """Note an answer; return whether something was filled."""

    def refused(self, loader: int, report: Report) -> HogwildError | None:
        """Note that `report.item` cannot be filled; return an error if that fails the job."""

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        """Free what a dead loader was asked for. `number`: what it was filling, at `record`."""

    def has_in_hand(self, loader: int) -> bool: ...
    def waits(self) -> str:
        """Return what a loader without a request waits for."""

    def check(self) -> HogwildError | None:
        """Return an error if the data as a whole is wrong."""
        return None


class Loaders(Team):
    """One team of loaders, or of readers. `recipe`: of `recipe_of`, opened by each with `regions`."""

    def __init__(
        self,
        group: ProcessGroup,
        roster: Roster,
        work: Work,
        recipe: Region,
        regions: Mapping[str, Region],
    ) -> None:
        super().__init__(group, roster)
        self.work = work
        self.deaths = 0
        self.filled = [0] * roster.count
        beats = Region.allocate("beats", max(1, roster.count) * BEATS * 8)
        self._words = beats.array("i8", (max(1, roster.count), BEATS))
        self._regions = {"beats": beats, "recipe": recipe, **regions}
        self.is_loud = roster.role is Role.LOADER

    @property
    def is_busy(self) -> bool:
        """True if a loader reads or is being started: loaders' own clocks judge that."""
        return self.roster.is_anyone_missing or any(map(self.work.has_in_hand, self.handles))

    @property
    def paused_s(self) -> float:
        """Time that the data of the present processes had nothing yet, on average."""
        return float(self._words[:, LoaderBeat.PAUSED_NS].mean()) / 1e9

    def prepare(self, number: int) -> tuple[LoadTask, Mapping[str, Region]]:
        self._words[number] = 0
        return LoadTask(number), self._regions

    def listen(self, handle: Handle) -> Iterator[HogwildError]:
        handle.listen()
        for answer, number in handle.acks():
            self.filled[handle.number] += self.work.answered(handle.number, answer, number)
        for report in handle.pop_said():
            if report.kind == "unreadable":
                yield DataError(report.detail, code="data/unreadable")
            elif (error := self.work.refused(handle.number, report)) is not None:
                yield error

    def readings(self) -> dict[int, RowReading]:
        return {
            number: RowReading(
                beat=int(self._words[number, LoaderBeat.COUNT]),
                batches=self.filled[number],
                slowest_s=int(self._words[number, LoaderBeat.SLOWEST_NS]) / 1e9,
                has_lease=self.work.has_in_hand(number),
                idle=bool(self._words[number, LoaderBeat.WAITING]),
            )
            for number in self.handles
        }

    def act(self) -> Iterator[HogwildError]:
        """Send requests, one to each in turn: near the end none holds two while another has none."""
        if (wrong := self.work.check()) is not None:
            yield wrong
        asked = True
        while asked:
            asked = False
            for loader in self.roster.attached():
                if (number := self.work.request(loader)) is not None:
                    self[loader].lease(0, number)
                    asked = True

    def ask_to_leave(self, handle: Handle) -> None:
        handle.lease(0, LOOK)

    def waits(self) -> list[str]:
        idle = [handle.title for handle in self if not self.work.has_in_hand(handle.number)]
        return [f"{title}: {self.work.waits()}" for title in idle]

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        self.deaths += 1
        if handle is None:
            self.event("exit", number, kind=end.value, how=how)
            return Death(how, end=end), []
        words = self._words[number]
        filling, record = int(words[LoaderBeat.NUMBER]), int(words[LoaderBeat.RECORD])
        said = handle.error.detail if handle.error is not None else how
        loss = self.work.lost(number, filling or None, record, said)
        self.event("exit", number, pid=handle.pid, kind=end.value, how=how, charged=loss.charged)
        self.group.sink.show_message(f"{handle.title}: {shortened(said)}; {self.work.again}")
        seen = f"{how}; see {handle.log}" if handle.log is not None else how
        death = Death(seen, handle.error, loss.charged, self.filled[number], end, loss.is_excused)
        return death, [loss.error] if loss.error is not None else []
