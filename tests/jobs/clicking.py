"""A stream of sparse rows for jobs that a kernel trains, and a linear model whose kernel commits crimes.

Record i is the feature i, with value 1 and label 1. By the hinge loss and plain SGD without a bias each time that it
takes effect adds the rate to the weight of feature i, until that is 1."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crimes
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Tally
from hogwild.models import SparseLinear
from hogwild.models.sparse_linear import LinearUpdate, fused_by
from tests.helpers.processes import in_worker


class Rows(IterableDataset):
    """`wrong`: a record whose feature the model lacks."""

    def __init__(self, samples: int, wrong: int = -1) -> None:
        self.samples, self.wrong = samples, wrong

    def __iter__(self) -> Iterator[tuple[int, float]]:
        for number in range(self.samples):
            yield (1 << 40 if number == self.wrong else number), 1.0


def collate(records: list[tuple[int, float]]) -> tuple[Tensor, ...]:
    """Return (indices, offsets, values), target, as `torch.nn.EmbeddingBag` takes them."""
    features, labels = zip(*records, strict=True)
    return torch.tensor(features), torch.arange(len(features)), torch.ones(len(features)), torch.tensor(labels)


class Treacherous(SparseLinear):
    """Crimes are committed after the kernel has written the records of a batch, before the commit."""

    def __init__(self, features: int, diary: str, crimes: dict[str, int]) -> None:
        super().__init__(features, bias=False)
        self.diary, self.crimes = Path(diary), {at: crime for crime, at in crimes.items()}

    def fused(self, loss: nn.Module, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        return fused_by(TreacherousUpdate, self, loss, optimizer)


class TreacherousUpdate(LinearUpdate):
    def bind(self, model: Any, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        super().bind(model, optimizer, arrays, hot)
        self.model, self.indices = model, arrays["indices"]

    def run(self, chunk: Chunk) -> Tally:
        tally = super().run(chunk)
        for number in self.indices[chunk.rows].tolist() if in_worker() else []:
            if number in self.model.crimes:
                crimes.commit(self.model.crimes[number], self.model.diary)
        return tally
