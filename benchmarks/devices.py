"""The figures of streamed data, devices and recurrent models: `make bench-devices`, about 35 minutes on 2 cores. Needs
the MNIST and tinyshakespeare files (`HOGWILD_DATA`). Run nothing else meanwhile.

    python -m benchmarks.devices                       everything
    python -m benchmarks.devices --only stream,ring    these sections; the rows of the others stay as they were

Each section is written as soon as it is measured. A GPU has a suite of its own: `benchmarks.gpu`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import (
    allocations,
    delta_cost,
    loader_kills,
    recurrent,
    ring_cost,
    sections,
    stream_feed,
    wrong_tool,
)
from benchmarks.figures import Figure
from benchmarks.row import Row

SUITE = "devices"


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of each measurement. `batches` through the ring and the queue; `exchanges` of a worker; `rivals` of
    which sizes and so many updates (None: each size's own)."""

    runs: int = 3
    stream: stream_feed.Extent = stream_feed.FULL
    lstm: recurrent.Effort = recurrent.FULL
    batches: int = 10_000
    exchanges: int = 8
    kills: int = loader_kills.KILLS
    sizes: tuple[wrong_tool.Size, ...] = wrong_tool.SIZES
    updates: int | None = None


FULL = Effort()
QUICK = Effort(1, stream_feed.QUICK, recurrent.QUICK, 100, 1, 3, wrong_tool.SIZES[:1], wrong_tool.QUICK_UPDATES)


def wrong_tools(effort: Effort) -> list[Row]:
    rivals = wrong_tool.Rivals(effort.runs, effort.updates)
    return [row for size in effort.sizes for row in rivals.measure(size)]


Measure = Callable[[Effort], list[Row]]
SECTIONS: dict[str, tuple[Measure, tuple[Figure, ...]]] = {
    "stream": (lambda effort: stream_feed.rows(effort.stream), (stream_feed.OVER_LOADER,)),
    "ring": (lambda effort: ring_cost.rows(effort.runs, effort.batches), (ring_cost.OVER_QUEUE,)),
    "allocations": (lambda effort: allocations.rows(), (allocations.ON_CPU, allocations.ON_DEVICE)),
    "lstm": (lambda effort: recurrent.lanes(effort.lstm), (recurrent.TWO_OVER_ONE,)),
    "cells": (lambda effort: recurrent.cells(effort.lstm), ()),
    "delta": (lambda effort: delta_cost.rows(effort.runs, effort.exchanges), (delta_cost.SHARE,)),
    "kills": (lambda effort: loader_kills.rows(effort.kills), (loader_kills.WRONG,)),
    "wrong-tool": (wrong_tools, ()),
}


def main(argv: Sequence[str] | None = None) -> None:
    sections.main(SUITE, SECTIONS, (FULL, QUICK), argv, "mnist/ and tinyshakespeare/")


if __name__ == "__main__":
    main()
