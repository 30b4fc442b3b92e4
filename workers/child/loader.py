"""A loader: a process that reads streamed data. It receives numbers of slots, reads each batch as the ring's table
describes it, and writes it into the slot.

    parent                                      loader
    task: stream, ring ── socket ──►            opens the data set                     ──► "ready"
    (·, slot + 1) ── lease pipe ──►             beat, record by record; collate into the slot
                                                filled, or the shard has ended         ──► ack pipe (·, slot + 1)
                                                the batch cannot be read               ──► "bad-batch"; the next slot
    (LEAVE, 0) ── lease pipe ──►                leaves

Only the loader writes its row of the ring; a slot is written by the loader that received its number."""

import socket
import time
from collections import deque
from collections.abc import Callable

import cloudpickle

from hogwild.feeds.ring import LoaderBeat, Ring, RingSpec
from hogwild.feeds.stream_reader import Filler, Stream, Unreadable
from hogwild.scheduling.work_queue import WorkItem
from hogwild.training import torch_settings
from workers.child.adoption import adopt, limit_threads
from workers.child.standard_streams import redirect_to_files
from workers.child.worker_loop import WAIT_MS
from workers.messages import LOOK, Leases, Leaving, LoadTask, Report, Start, write_record

FILLED, ENDED = 0, 1
LEAVE = 1  # first word of a record without a slot


class LoaderLoop:
    """Fills slots until told to leave. Every wait beats and watches the lifeline."""

    item: WorkItem | None = None  # a loader has no lease: its row says what a death is charged to

    def __init__(self, start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, ring: Ring) -> None:
        self._start, self._channel, self._leaving, self._task = start, channel, leaving, task
        self._ring = ring
        self._words = ring.loaders[task.loader]
        self._hand: deque[int] = deque()
        self._told = False
        self._filler: Filler | None = None
        self._leases = Leases(start)
        self.path = "loader"

    def open(self, stream: Stream, again: Callable[[], Stream]) -> None:
        """Open the data set; `again` returns the stream anew. An exception of its constructor ends the loader."""
        self._beat(0)
        self._filler = Filler(stream, self._ring, self._beat, self._task.loader, again)

    def run(self) -> None:
        """Fill slots until told to leave, by a record or by SIGTERM."""
        while not (self._told or self._leaving.asked):
            self._words[LoaderBeat.WAITING] = not self._hand
            self._pull(0 if self._hand else WAIT_MS)
            if self._hand:
                self._words[LoaderBeat.WAITING] = 0
                self._fill(self._hand.popleft())

    def close(self) -> None:
        """No-op: nothing is left open."""

    def _fill(self, number: int) -> None:
        assert self._filler is not None
        began_ns = time.monotonic_ns()
        self._words[LoaderBeat.SLOT] = number
        try:
            is_there = self._filler.fill(number - 1)
        except Unreadable as bad:
            self._words[LoaderBeat.SLOT] = 0
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
        if not self._filler.has_passed_over:  # else the time is no measure for the stall limit
            self._words[LoaderBeat.SLOWEST_NS] = max(
                int(self._words[LoaderBeat.SLOWEST_NS]), time.monotonic_ns() - began_ns
            )
        self._words[LoaderBeat.SLOT] = 0
        write_record(self._start.ack_write, FILLED if is_there else ENDED, number)

    def _beat(self, record: int) -> None:
        self._words[LoaderBeat.RECORD] = record
        self._words[LoaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for first, item in self._leases.pull(wait_ms):
            if item != LOOK:
                self._hand.append(item)
            elif first == LEAVE:
                self._told = True
        self._words[LoaderBeat.COUNT] += 1


def make_loader(
    start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, descriptors: list[int]
) -> LoaderLoop:
    """Build a loader over the mapped ring. Raises whatever the data set's constructor raises."""
    redirect_to_files(task.log, task.stacks)
    regions = adopt(start, task, descriptors)
    limit_threads(1)  # loaders are planned as one per core

    def unpacked() -> tuple[Stream, RingSpec]:
        stream, spec = cloudpickle.loads(regions["stream"].read_bytes(task.stream_nbytes))
        return stream, spec

    stream, spec = unpacked()
    torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
    loop = LoaderLoop(start, channel, leaving, task, Ring(regions["ring"], spec))
    loop.open(stream, lambda: unpacked()[0])
    return loop
