"""A loader: fills what it is asked for, slots of a stream's ring or ranges of a data set that is read into memory. The
workers' counterpart is `trainer.py`; what is filled, and how, is the task's recipe.

    parent                                       loader
    task: recipe, regions ── socket ──►          opens the recipe                       ──► "ready"
    (0, number) ── lease pipe ──►                beat, record by record; fill it        ──► ack pipe: FILLED or ENDED
                                                 a record that cannot be used           ──► "bad-batch"; the next number
    (0, 0) ── lease pipe ──►                     leaves

A row of the region `beats` (loader, BEATS) int64 has one writer, its loader."""

import socket
import time
from collections import deque
from enum import IntEnum

import cloudpickle

from hogwild.feeds.stream_reader import Unreadable
from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from hogwild.user_code import raised_text
from hogwild.workers.child.recipes import Recipe
from hogwild.workers.child.trainer import WAIT_MS, Loop
from hogwild.workers.messages import LOOK, Leases, Leaving, LoadTask, ParentGone, Report, Start, write_record

FILLED, ENDED = 0, 1
BEATS = 8  # words per loader: a cache line


class LoaderBeat(IntEnum):
    """Words of a loader's row."""

    COUNT = 0
    NUMBER = 1  # slot + 1 or range being filled; 0: none
    SLOWEST_NS = 2
    WAITING = 3  # 1: waits for a number
    RECORD = 4  # the position being read, to name it if it kills the loader


class LoaderLoop(Loop):
    """Fills until told to leave. Every wait beats and watches the lifeline."""

    def __init__(
        self, start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, regions: dict[str, Region]
    ) -> None:
        """Open the recipe. Raises whatever the data set's constructor raises."""
        self._start, self._channel, self._leaving = start, channel, leaving
        beats = regions["beats"]
        self._words = beats.array("i8", (beats.nbytes // (8 * BEATS), BEATS))[task.loader]
        content = regions["recipe"].read_bytes()
        recipe: Recipe = cloudpickle.loads(content)
        torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
        self._hand: deque[int] = deque()
        self._leases = Leases(start)
        self._beat(0)
        self._filling = recipe.open(regions, self._beat, task.loader, lambda: cloudpickle.loads(content))

    def run(self) -> None:
        """Fill until told to leave, by a record or by SIGTERM."""
        while not self._leaving.asked:
            self._words[LoaderBeat.WAITING] = not self._hand
            self._pull(0 if self._hand else WAIT_MS)
            if self._hand:
                self._words[LoaderBeat.WAITING] = 0
                self._fill(self._hand.popleft())

    def _fill(self, number: int) -> None:
        began_ns = time.monotonic_ns()
        self._words[LoaderBeat.NUMBER] = number
        try:
            is_there = self._filling.fill(number)
        except Unreadable as bad:
            self._words[LoaderBeat.NUMBER] = 0
            Report(
                "bad-batch",
                detail=str(bad.error),
                error_type=bad.kind,
                place=bad.place,
                traceback=bad.trace,
                code=bad.error.code,
                item=number,
            ).send(self._channel)
            return
        if not self._filling.has_passed_over():  # else the time is no measure for the stall limit
            self._words[LoaderBeat.SLOWEST_NS] = max(
                int(self._words[LoaderBeat.SLOWEST_NS]), time.monotonic_ns() - began_ns
            )
        self._words[LoaderBeat.NUMBER] = 0
        write_record(self._start.ack_write, FILLED if is_there else ENDED, number)

    def _beat(self, record: int) -> None:
        self._words[LoaderBeat.RECORD] = record
        self._words[LoaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for _, item in self._leases.pull(wait_ms):
            if item == LOOK:
                self._leaving.ask()
            else:
                self._hand.append(item)
        self._words[LoaderBeat.COUNT] += 1


def load(
    start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, regions: dict[str, Region]
) -> LoaderLoop:
    """Return the loop of a loader, or of a reader, which has no log. If a reader's data set cannot be opened here, the
    parent reads it: then report that, and wait for the end."""
    try:
        return LoaderLoop(start, channel, leaving, task, regions)
    except (Exception, SystemExit) as error:  # e.g. a class that cannot be imported, a file that cannot be reopened
        if task.log:
            raise
        Report("unreadable", detail=raised_text(error)).send(channel)
        channel.recv(1)
        raise ParentGone from error
