"""The work of every baseline: the same networks, data and settings as the job that is measured against it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hogwild.models import LeNet, Mlp
from hogwild.shared_memory.region import Region


@dataclass(frozen=True, slots=True)
class Settings:
    """Those of configs/mnist.yaml. `updates` are measured, in each process, after `warm_up` that are not."""

    updates: int
    warm_up: int = 50
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.5


@dataclass(frozen=True, slots=True)
class Network:
    """A model, and `overrides` that make configs/mnist.yaml a job of it."""

    name: str
    overrides: tuple[str, ...] = ()

    def build(self) -> nn.Module:
        """In the memory format that is fastest: channels_last where there is a Conv2d."""
        if self.name == "LeNet":
            return LeNet(classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
        return Mlp(features=784, hidden=[128], classes=10)

    def shown(self, rows: Tensor) -> Tensor:
        """A batch as the model takes it; `rows` (B, 28, 28, 1) as they lie in memory."""
        return rows.permute(0, 3, 1, 2) if self.name == "LeNet" else rows.flatten(1)


LENET = Network("LeNet")
MLP = Network(
    "MLP",
    (
        "model.class_path=hogwild.models.Mlp",
        "model.init_args={features: 784, hidden: [128], classes: 10}",
    ),
)
NETWORKS = {network.name: network for network in (LENET, MLP)}


@dataclass(frozen=True, slots=True)
class Shared:
    """A data set in shared memory, read by all processes: x (N, 28, 28, 1) float32, y (N,) int64."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Shared":
        """Copies x (N, 1, 28, 28) float32 and y (N,) int64 into memory without a name, as our own jobs do: a small
        /dev/shm is no limit."""
        return cls(_shared(x.permute(0, 2, 3, 1)), _shared(y))


def _shared(tensor: Tensor) -> Tensor:
    region = Region.allocate("baseline", tensor.numel() * tensor.element_size())
    return region.tensor(tensor.dtype, tensor.shape).copy_(tensor)


class Batches:
    """Batch after batch, `index_select`ed into two buffers that are used for ever. Process `rank` of `ranks` takes its
    part of the permutation of each epoch, which all of them draw from `seed` and the epoch's number."""

    def __init__(self, network: Network, data: Shared, batch_size: int, *, seed: int, rank: int = 0, ranks: int = 1):
        self._data, self._size = data, batch_size
        self._seed, self._rank, self._ranks = seed, rank, ranks
        self._rows = torch.empty((batch_size, *data.x.shape[1:]))  # (B, 28, 28, 1)
        self._labels = torch.empty(batch_size, dtype=data.y.dtype)
        self._shown = network.shown(self._rows)
        self._per_epoch = len(data.x) // ranks // batch_size
        self._number = 0
        self._order = torch.empty(0)

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels (B,); they hold until the next call. A last batch that is not full is left out."""
        epoch, number = divmod(self._number, self._per_epoch)
        if number == 0:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._order = torch.randperm(len(self._data.x), generator=generator)[self._rank :: self._ranks].contiguous()
        chosen = self._order[number * self._size : (number + 1) * self._size]
        torch.index_select(self._data.x, 0, chosen, out=self._rows)
        torch.index_select(self._data.y, 0, chosen, out=self._labels)
        self._number += 1
        return self._shown, self._labels


def updates_of(model: nn.Module, batches: Batches, settings: Settings) -> Callable[[], None]:
    """One plain update of torch's per call: forward, backward, fused SGD."""
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=True)

    def update() -> None:
        inputs, labels = batches.next()
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()

    return update
