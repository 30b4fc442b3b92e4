"""Samplers of the tests' own, and the data that they draw from."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

TIMES = 4  # most often that a batch holds a sample


class Uneven(Sampler[list[int]]):
    """Batches of any size, in which samples come again. Epoch e draws samples [e * each, (e + 1) * each) alone, and no
    two batches share one: so the effects of every entry can be counted exactly, whoever trains it. Counts its epochs
    itself, as samplers of one's own do, and draws from torch's generator."""

    def __init__(self, dataset: Any, epochs: int) -> None:
        self.each, self.epoch = len(dataset) // epochs, 0

    def __iter__(self) -> Iterator[list[int]]:
        samples = (torch.randperm(self.each) + self.each * self.epoch).tolist()
        self.epoch += 1
        samples = samples[len(samples) // 8 :]  # an epoch need not have all
        while samples:
            size = int(torch.randint(1, 9, ()))
            batch, samples = samples[:size], samples[size:]
            times = torch.randint(1, TIMES + 1, (len(batch),)).tolist()
            yield [sample for sample, often in zip(batch, times, strict=True) for _ in range(often)]
