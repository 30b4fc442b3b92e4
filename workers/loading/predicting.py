"""Predictions of a large file by several processes, in the order of the rows: a team of readers, whose work is blocks.

    parent                                                          predictors
    the place of block n ──► table[(n - 1) % slots]
    n ── lease pipe ──►                                             read the block, predict it, write FOLDER/n
    FOLDER/n, when its turn comes ──► the answer                    ◄── ack pipe

    a predictor dies             its blocks are leased to others; the block it was at is charged
    a block is charged too often RunError; so are more deaths than a job may have
    a block cannot be predicted  the blocks before it come first, then its error

The model's tensors are mapped from one copy in memory. At most `slots` blocks wait, so memory and disk stay bounded."""

import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hogwild import by_value, host
from hogwild.config.schema import Supervise
from hogwild.errors import DataError, HogwildError, ModelError, RunError, UsageError
from hogwild.inference.inputs import Cut
from hogwild.inference.predict import Encode, Part, Predictor
from hogwild.planning.cpu_plan import may_fork, plan_here
from hogwild.shared_memory.region import Region
from hogwild.workers.child.loader import CUT_WORDS, PartsRecipe, recipe_of
from hogwild.workers.loading.loaders import LoaderLoss, Loaders, Work, region_of
from hogwild.workers.messages import Report
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.processes.handle import POLL_MS
from hogwild.workers.processes.roster import Role, Roster, limits_of

IN_HAND = 2  # blocks per predictor: the next one is there when one is done
WAITING = 4  # blocks per predictor that may wait for their turn, or be at work
KINDS = {kind.__name__: kind for kind in (DataError, ModelError, UsageError, RunError)}  # that travel as a report


class BlockWork(Work):
    """Blocks as work of readers. `table` (slots, CUT_WORDS) int64 gets the places of those at work."""

    again = "its rows are predicted again"

    def __init__(self, cuts: Iterator[Cut], table: np.ndarray, attempts: float) -> None:
        self._cuts, self._table, self._attempts = cuts, table, attempts
        self._free: list[int] = []  # leased before, by processes that died
        self._hands: dict[int, set[int]] = {}
        self._done: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._refused: dict[int, HogwildError] = {}
        self._cut, self._is_over = 0, False  # the last block cut; no more follow
        self.taken = 0  # the last block whose answer was taken

    @property
    def is_finished(self) -> bool:
        return self._is_over and self.taken == self._cut

    @property
    def next_done(self) -> int | None:
        """The number of the block whose turn it is, if it is predicted. Raises its error, if it cannot be."""
        number = self.taken + 1
        if number in self._refused:
            raise self._refused[number]
        return number if number in self._done else None

    def take(self) -> None:
        """Note that the answer of `next_done` was taken; its row of the table is free."""
        self.taken += 1
        self._done.remove(self.taken)

    def request(self, loader: int) -> int | None:
        hand = self._hands.setdefault(loader, set())
        if len(hand) >= IN_HAND:
            return None
        number = heapq.heappop(self._free) if self._free else self._new()
        if number is not None:
            hand.add(number)
        return number

    def _new(self) -> int | None:
        if self._is_over or self._refused or self._cut - self.taken >= len(self._table):
            return None
        cut = next(self._cuts, None)
        if cut is None:
            self._is_over = True
            return None
        row = self._table[self._cut % len(self._table)]
        row[0], row[1 : 1 + len(cut)] = len(cut), cut
        self._cut += 1
        return self._cut

    def answered(self, loader: int, answer: int, number: int) -> bool:
        self._hands[loader].discard(number)
        self._done.add(number)
        return True

    def refused(self, loader: int, report: Report) -> None:
        self._hands[loader].discard(report.item)
        kind = KINDS.get(report.error_type, HogwildError)
        self._refused[report.item] = kind(report.detail, code=report.code)

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        hand = self._hands.pop(loader, set())
        for each in hand:
            heapq.heappush(self._free, each)
        if number not in hand:
            return LoaderLoss()
        self._deaths[number] += 1
        if self._deaths[number] < self._attempts:
            return LoaderLoss((0, number))
        error = RunError(
            f"predicting block {number} of the input has ended {self._deaths[number]} processes, the last one: {how}; "
            "without --procs it is predicted by this process, under a debugger if you like",
            code="run/predictors-died",
        )
        return LoaderLoss((0, number), error=error)

    def has_in_hand(self, loader: int) -> bool:
        return bool(self._hands.get(loader))

    def waits(self) -> str:
        return "waits for a block to predict"


class _Messages:
    """A sink that passes messages on."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def event(self, kind: str, /, **values: Any) -> None:
        """No-op: there is no run to keep it."""

    def show_message(self, message: str) -> None:
        self._say(message)


def predicted_parts(
    predictor: Predictor,
    encode: Encode,
    procs: int,
    supervise: Supervise,
    folder: Path,
    say: Callable[[str], object],
) -> Iterator[Part]:
    """Yield the answers of all blocks, in the order of the rows. `folder`: for answers that wait; `say` gets messages
    on processes that were replaced. Main thread only. Raises RunError if a block ends too many of them, and what a
    block raises."""
    host.require_main_thread()
    planned, is_forked = plan_here(procs, 1), may_fork("auto")
    with host.naming_limits(), contextlib.ExitStack() as stack:
        if is_forked:
            if SERVER.pid is None:  # one of `hogwild.train` stays
                stack.callback(SERVER.close)
            SERVER.start(planned.environment, kernels="")
        group = stack.enter_context(ProcessGroup(supervise))
        group.tell(_Messages(say))
        group.start(planned, is_forked=is_forked)
        table = Region.allocate("blocks", WAITING * procs * CUT_WORDS * 8)
        rows = table.array("i8", (WAITING * procs, CUT_WORDS))
        limits = limits_of(Role.READER, supervise)
        work = BlockWork(predictor.inputs.cuts(), rows, limits.max_item_attempts)
        recipe = recipe_of(*by_value.dumps_apart(PartsRecipe(encode, str(folder), len(rows))))
        try:
            regions = {"blocks": table, "predictor": region_of("predictor", predictor)}
        except Exception as error:
            raise DataError(
                f"the model or its input cannot be sent to other processes: {type(error).__name__}: {error}; predict "
                "without --procs",
                code="model/not-picklable",
            ) from error
        team = Loaders(group, Roster(Role.READER, limits, procs), work, recipe, regions)
        group.teams.append(team)
        while not work.is_finished:
            if found := group.step(time.monotonic(), [team]):
                raise found[0]
            while (number := work.next_done) is not None:
                file = folder / str(number)
                content = file.read_bytes()
                file.unlink()
                yield int.from_bytes(content[:8], "little"), content[8:]
                work.take()
            group.wait(POLL_MS)
