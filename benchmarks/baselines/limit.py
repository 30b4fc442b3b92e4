"""The limit: N processes that share nothing. Each has its own model and optimizer and trains as fast as torch lets
it; only the data lies in shared memory, read by all. No supervisor, no queue, no shared parameter: what is left
between this and a Hogwild job is the price of everything we do. With one process it is *the bare loop*.

Float data, `index_select` into a reused buffer, channels_last input and weights where there is a Conv2d, SGD with the
job's settings, one thread. How SGD steps and how gradients are cleared is not ours to say: `fastest` tries the four
ways stock torch offers, on the network itself, and the limit takes the fastest."""

import itertools
import statistics
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.baselines.networks import Batches, Network, Settings, Shared
from benchmarks.baselines.race import Line, race, rate, total

BLOCKS = 9  # of each way, in turn


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which stock torch steps (else `foreach`), and how it clears gradients (else they are overwritten with
    zeros)."""

    fused: bool
    set_to_none: bool

    def __str__(self) -> str:
        return f"{'fused' if self.fused else 'foreach'} SGD, gradients set to {'None' if self.set_to_none else 'zero'}"


WAYS = tuple(itertools.starmap(Way, itertools.product((True, False), repeat=2)))


class Loop:
    """One process's own model, trained update by update, in any of WAYS."""

    def __init__(self, network: Network, data: Shared, settings: Settings, seed: int) -> None:
        torch.manual_seed(seed)
        self._model = network.build()
        self._loss = nn.CrossEntropyLoss()
        self._batches = Batches(network, data, settings.batch_size, seed=seed)
        self._optimizers = {
            fused: torch.optim.SGD(
                self._model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=fused, foreach=not fused
            )
            for fused in (True, False)
        }

    def parameters(self) -> list[Tensor]:
        """Return copies of the parameters as they are now."""
        return [param.detach().clone() for param in self._model.parameters()]

    def update(self, way: Way) -> None:
        optimizer = self._optimizers[way.fused]
        inputs, labels = self._batches.next()
        optimizer.zero_grad(set_to_none=way.set_to_none)
        self._loss(self._model(inputs), labels).backward()
        optimizer.step()


def samples_per_s(network: Network, data: Shared, procs: int, settings: Settings, way: Way) -> float:
    """All processes at once: the sum of what each trains a second. (Not all samples over the slowest one's time: on a
    machine whose cores are not equally free, that would charge the limit for a queue it does not have.)"""
    return total(race(_train, [(network, data, settings, way, rank) for rank in range(procs)]))


def fastest(network: Network, data: Shared, settings: Settings) -> Way:
    """By the medians of short blocks in turn, in one process: some seconds."""
    times: list[float]
    (times,) = race(_try, [(network, data, settings)])
    return WAYS[times.index(min(times))]


def _train(line: Line, network: Network, data: Shared, settings: Settings, way: Way, rank: int) -> None:
    loop = Loop(network, data, settings, seed=rank)
    rate(partial(loop.update, way), settings.warm_up, settings.batch_size)
    line.ready()
    line.answer(rate(partial(loop.update, way), settings.updates, settings.batch_size))


def _try(line: Line, network: Network, data: Shared, settings: Settings) -> None:
    """Answers the seconds per sample of each of WAYS."""
    loop = Loop(network, data, settings, seed=0)
    updates = max(1, settings.updates // (BLOCKS * len(WAYS)))
    for way in WAYS:
        rate(partial(loop.update, way), settings.warm_up, settings.batch_size)
    line.ready()
    blocks: dict[Way, list[float]] = {way: [] for way in WAYS}
    for _ in range(BLOCKS):
        for way, taken in blocks.items():
            taken.append(1 / rate(partial(loop.update, way), updates, settings.batch_size))
    line.answer([statistics.median(blocks[way]) for way in WAYS])
