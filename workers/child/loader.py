"""A loader: fills what it is asked for, slots of a stream's ring or ranges of a data set that is read into memory. The
workers' counterpart is `worker_loop.py`; what is filled, and how, is the task's recipe (`recipes.py`).

    parent                                       loader
    task: recipe, regions ── socket ──►          opens the recipe                       ──► "ready"
    (task, number) ── lease pipe ──►             beat, record by record; fill it        ──► ack pipe: FILLED or ENDED
                                                 a record that cannot be used           ──► "bad-batch"; the next number
    (task, 0) ── lease pipe ──►                  leaves; a reader waits for its next task

A row of the region `beats` (loader, BEATS) int64 has one writer, its loader."""

import gc
import socket
import time
from collections import deque
from enum import IntEnum

import cloudpickle
import torch

from hogwild.feeds.stream_reader import Unreadable
from hogwild.scheduling.work_queue import WorkItem
from hogwild.training import torch_settings
from hogwild.user_code import raised_text
from workers.child.adoption import adopt, limit_threads
from workers.child.recipes import Recipe
from workers.child.standard_streams import redirect_to_files
from workers.child.worker_loop import WAIT_MS
from workers.messages import LOOK, Leases, Leaving, LoadTask, Report, Start, write_record

FILLED, ENDED = 0, 1
BEATS = 8  # words per loader: a cache line


class LoaderBeat(IntEnum):
    """Words of a loader's row."""

    COUNT = 0
    NUMBER = 1  # slot + 1 or range being filled; 0: none
    SLOWEST_NS = 2
    WAITING = 3  # 1: waits for a number
    RECORD = 4  # the position being read, to name it if it kills the loader


class LoaderLoop:
    """Fills until told to leave. Every wait beats and watches the lifeline."""

    item: WorkItem | None = None  # a loader has no lease: its row says what a death is charged to
    path = ""
    # The newest finished task, per process. A process that starts slowly may find several tasks in its socket, and read
    # the ends of all of them in the pipe at once.
    over = 0

    def __init__(
        self, start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, descriptors: list[int]
    ) -> None:
        """Open the recipe. Raises whatever the data set's constructor raises."""
        regions = adopt(start, task, descriptors)
        limit_threads(1)  # loaders are planned as one per core; and training configures the pool of a later worker
        self._start, self._channel, self._leaving, self.task = start, channel, leaving, task.number
        beats = regions["beats"]
        self._words = beats.array("i8", (beats.nbytes // (8 * BEATS), BEATS))[task.loader]
        content = regions["recipe"].read_bytes(task.recipe_nbytes)
        recipe: Recipe = cloudpickle.loads(content)
        torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
        self._hand: deque[int] = deque()
        self._leases = Leases(start)
        self._beat(0)
        self._filling = recipe.open(regions, self._beat, task.loader, lambda: cloudpickle.loads(content))

    def run(self) -> None:
        """Fill until told to leave, by a record or by SIGTERM."""
        while not self._leaving.asked and LoaderLoop.over < self.task:
            self._words[LoaderBeat.WAITING] = not self._hand
            self._pull(0 if self._hand else WAIT_MS)
            if self._hand:
                self._words[LoaderBeat.WAITING] = 0
                self._fill(self._hand.popleft())

    def close(self) -> None:
        """No-op: nothing is left open."""

    def _fill(self, number: int) -> None:
        began_ns = time.monotonic_ns()
        self._words[LoaderBeat.NUMBER] = number
        try:
            is_there = self._filling.fill(number)
        except Unreadable as bad:
            self._words[LoaderBeat.NUMBER] = 0
            self._report(
                "bad-batch",
                detail=str(bad.error),
                error_type=bad.kind,
                place=bad.place,
                traceback=bad.trace,
                code=bad.error.code,
                item=number,
            )
            return
        if not self._filling.has_passed_over:  # else the time is no measure for the stall limit
            self._words[LoaderBeat.SLOWEST_NS] = max(
                int(self._words[LoaderBeat.SLOWEST_NS]), time.monotonic_ns() - began_ns
            )
        self._words[LoaderBeat.NUMBER] = 0
        write_record(self._start.ack_write, FILLED if is_there else ENDED, number)

    def _report(self, kind: str, **values: object) -> None:
        Report(kind, task=self.task, **values).send(self._channel)  # type: ignore[arg-type]

    def _beat(self, record: int) -> None:
        self._words[LoaderBeat.RECORD] = record
        self._words[LoaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for task, item in self._leases.pull(wait_ms):
            if item == LOOK:
                LoaderLoop.over = max(LoaderLoop.over, task)
            elif task == self.task:
                self._hand.append(item)
        self._words[LoaderBeat.COUNT] += 1


def load(
    start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, descriptors: list[int]
) -> LoaderLoop | None:
    """Return the loop of a loader that has a log. Without one, be a reader here until the task is over, and return
    None; errors of user code are then reported, not raised. Raises ParentGone."""
    if task.log:
        redirect_to_files(task.log, task.stacks)
        return LoaderLoop(start, channel, leaving, task, descriptors)
    try:
        loop = LoaderLoop(start, channel, Leaving(), task, descriptors)  # SIGTERM is for the worker it will be
    except (Exception, SystemExit) as error:  # e.g. a class that cannot be imported, a file that cannot be reopened
        Report("unreadable", detail=raised_text(error), task=task.number).send(channel)
        return None
    try:
        Report("ready", task=task.number).send(channel)
        loop.run()
    finally:
        torch.default_generator.manual_seed(0)
    del loop
    gc.collect()  # free reference cycles of user code: training needs the memory
    return None
