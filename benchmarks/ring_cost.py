"""The cost of a batch of 64 x 784 floats and 64 labels between two processes: our ring of reused slots over
`torch.multiprocessing.Queue` of fresh tensors.

    python -m benchmarks.ring_cost --way ring      one stream of batches, in processes of its own; prints one JSON line

Ours, per batch: the loader's own loop (`workers/child/loader.py`: generators seeded, order, beats, the rows stacked
into the slot, its head, the answer over its pipe); the supervisor's turn (poll, answer, schedule, table row, request
over its pipe); a lease of the real queue, over a pipe to the worker; the worker's views (table, head), its
acknowledgement over a pipe, and the books of the queue. Supervisor and worker take turns in one process here, so that
both ways have two processes; every record still goes through a pipe. What is left out of the supervisor: beats judged,
status and log, which happen some times a second and not once a batch.

Theirs, per batch: the same rows stacked straight into new shared memory, put, got. The records themselves are prepared
in both: reading them is the user's code, and the same."""

import argparse
import json
import multiprocessing
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.multiprocessing import get_context

from benchmarks import commands
from benchmarks.baselines.tensor_queue import Row, produce
from benchmarks.bench import in_turn, median, say
from benchmarks.figures import Figure
from benchmarks.row import Row as Measured
from hogwild import by_value
from hogwild.feeds.ring import Ring, RingFeed, RingSpec
from hogwild.feeds.stream_reader import Collator, Origin, Stream
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.training.torch_settings import current
from hogwild.workers.child.loader import BEATS, FILLED, LoaderLoop, StreamRecipe, recipe_of
from hogwild.workers.messages import LOOK, Leaving, LoadTask, Start, read_records, write_record
from hogwild.workers.session.ring_state import RingState

BATCH, FEATURES = 64, 784
SLOTS = 8  # what a job of one worker and one loader has; as many batches may be under way in the queue
WARM_UP = 200  # batches
RING, QUEUE = "ring", "queue"
OVER_QUEUE = Figure(
    "ring of reused slots over torch.multiprocessing.Queue of fresh tensors (64 x 784 floats): cost per batch", 5.0,
    "x cheaper",
)  # fmt: skip
PROCESSOR = "the same, processor time of both processes per batch"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per batch, from a stream of them: by the clock, and of the processors of both processes."""

    clock_us: float
    processor_us: float


class Prepared:
    """A data set whose records are made: what they cost to read is not measured."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.records: list[Row] = [(torch.rand(FEATURES), number % 10) for number in range(BATCH)]

    def __len__(self) -> int:
        return BATCH * self.batches

    def __getitem__(self, number: int) -> Row:
        return self.records[number % BATCH]

    def __getitems__(self, numbers: list[int]) -> list[Row]:
        return self.records


def timed(batches: Iterator[object], count: int) -> Cost:
    """Return the cost of the last `count` that are asked for. The other process's work while it warms up is counted,
    too: next to nothing of its processor time."""
    for _ in range(WARM_UP):
        next(batches)
    began_s, busy_s = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(batches)
    clock_s, busy_s = time.perf_counter() - began_s, time.process_time() - busy_s
    for _ in batches:
        pass
    return Cost(1e6 * clock_s / count, 1e6 * busy_s / count)


def with_children(cost: Cost, count: int) -> Cost:
    """Their processor time as well; they have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(cost.clock_us, cost.processor_us + 1e6 * (used.ru_utime + used.ru_stime) / (count + WARM_UP))


# ---- theirs ----------------------------------------------------------------------------------------------------------


def through_queue(count: int) -> Cost:
    context = get_context("fork")
    queue, done = context.Queue(maxsize=SLOTS), context.Queue()
    total = count + WARM_UP
    producer = context.Process(target=_alone, args=(produce, queue, Prepared(1).records, total, done))
    producer.start()
    cost = timed((queue.get() for _ in range(total)), count)
    done.put(None)
    producer.join()
    return with_children(cost, count)


def _alone(run: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    run(*arguments)


# ---- ours ------------------------------------------------------------------------------------------------------------


class Pipe:
    """Non-blocking, as those of a worker."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


class Parent:
    """The supervisor's turn and the worker's, one after the other."""

    def __init__(self, stream: Stream, ring: Ring) -> None:
        self.loader: BaseProcess | None = None
        self.requests, self.answers, self.leases, self.acks = Pipe(), Pipe(), Pipe(), Pipe()
        plan, spec = stream.plan, ring.spec
        self._schedule = StreamSchedule(plan, spec.slots, spec.loaders, update=1, epochs=1, in_order=True)
        self._queue = WorkQueue(plan, Limits(procs=1), schedule=self._schedule)
        self._state = RingState(ring, self._schedule, stream)
        self._feed = RingFeed(ring, BATCH)
        self._items: dict[int, Any] = {}
        self._poll = select.poll()
        self._poll.register(self.answers.read, select.POLLIN)

    def batches(self) -> Iterator[object]:
        """Each as the worker has it; the next call settles it."""
        self._ask()
        while not self._queue.is_finished:
            self._turn()
            for _, number in read_records(self.leases.read):
                item = self._items.pop(number)
                for batch in range(item.start, item.stop):
                    yield self._feed.gather(item.epoch, batch)
                write_record(self.acks.write, 0, item.id)
        write_record(self.requests.write, 0, LOOK)

    def _turn(self) -> None:
        """Waits only where there is nothing to do."""
        acknowledged = [self._queue.ack(0, number, 0) for _, number in read_records(self.acks.read)]
        if not self._poll.poll(0 if acknowledged else 20) and self.loader is not None and not self.loader.is_alive():
            raise RuntimeError(f"the loader ended with exit status {self.loader.exitcode}")
        for answer, number in read_records(self.answers.read):
            assert answer == FILLED
            self._state.filled(0, number - 1)
        self._ask()
        while (item := self._queue.lease(0)) is not None:
            self._items[item.id] = item
            write_record(self.leases.write, 0, item.id)

    def _ask(self) -> None:
        while (request := self._schedule.request(0)) is not None:
            self._state.write(request)
            write_record(self.requests.write, 0, request.slot + 1)


def through_ring(count: int) -> Cost:
    dataset = Prepared(count + WARM_UP)
    stream = Stream(Origin(dataset), Collator(), BatchPlan(len(dataset), BATCH), "full", seed=1)
    form, shapes = stream.collator.form(dataset.records)
    ring = Ring.allocate("ring", RingSpec(form, SLOTS, 1, form.nbytes(shapes)))
    parent, lifeline = Parent(stream, ring), Pipe()
    ours, theirs = socket.socketpair()
    start = Start(
        parent_pid=os.getpid(),
        lease_read=parent.requests.read,
        ack_write=parent.answers.write,
        channel=theirs.fileno(),
        lifeline=lifeline.read,
        words=-1,
        environment=(),
    )
    recipe = by_value.dumps_apart(StreamRecipe(stream, ring.spec, run_dir=""))
    regions = {
        "beats": Region.allocate("beats", 8 * BEATS),
        "recipe": recipe_of(*recipe),
        "ring": ring.region,
    }
    sizes = tuple((name, region.nbytes) for name, region in regions.items())
    task = LoadTask(0, regions=sizes, sys_path=(*sys.path,), torch_settings=current())
    begin = partial(_load, start, theirs, task, regions)
    loader = multiprocessing.get_context("fork").Process(target=_alone, args=(begin,))
    loader.start()
    parent.loader = loader
    cost = timed(parent.batches(), count)
    loader.join()
    ours.close()
    return with_children(cost, count)


def _load(start: Start, channel: socket.socket, task: LoadTask, regions: dict[str, Region]) -> None:
    LoaderLoop(start, channel, Leaving(), task, regions).run()


WAYS: dict[str, Callable[[int], Cost]] = {RING: through_ring, QUEUE: through_queue}


# ---- the figure ------------------------------------------------------------------------------------------------------


def cost(way: str, batches: int) -> Cost:
    """In processes of its own. Raises CommandFailed."""
    said = commands.answer("-m", "benchmarks.ring_cost", "--way", way, "--batches", str(batches))
    found = Cost(**json.loads(said))
    say(f"{way}: {found.clock_us:.0f} us a batch, {found.processor_us:.0f} us of the processors")
    return found


def rows(runs: int, batches: int) -> list[Measured]:
    found: dict[str, list[Cost]] = {RING: [], QUEUE: []}

    def measured(way: str) -> float:
        found[way].append(cost(way, batches))
        return found[way][-1].clock_us

    ours, theirs = in_turn(runs, lambda: measured(RING), lambda: measured(QUEUE))
    note = f"ours {median(ours):.0f} us; baseline: the queue, us; {SLOTS} slots, or {SLOTS} tensors under way"
    clock = OVER_QUEUE.row([b / a for a, b in zip(ours, theirs, strict=True)], median(theirs), note)
    mine, queues = ([one.processor_us for one in found[way]] for way in (RING, QUEUE))
    ratios = [b / a for a, b in zip(mine, queues, strict=True)]
    note = f"ours {median(mine):.0f} us; baseline: the queue, us"
    return [clock, Measured(PROCESSOR, "x cheaper", None, ratios, median(queues), note)]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ring_cost")
    parser.add_argument("--way", choices=list(WAYS), required=True)
    parser.add_argument("--batches", type=int, default=5000)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = WAYS[given.way](given.batches)
    print(json.dumps({"clock_us": found.clock_us, "processor_us": found.processor_us}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
