"""Small models, batches, and the plain torch loop that updates are compared with."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate

# Whether torch multiplies and adds in one step, rounding once, as our kernels do: not with ATEN_CPU_CAPABILITY=default.
ROUNDS_ONCE = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
Batch = tuple[Tensor, Tensor]
Rule = Callable[..., torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A worker's one thread. Two threads on a busy machine of two cores wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class ConvNet(nn.Module):
    """Convolutions, a hidden layer, eight parameters: LeNet in small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.hidden, self.out = nn.Linear(54, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(self.conv2(x))
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class Branches(nn.Module):
    """Uses one branch, the other, or both, as the first input says: unused parameters in some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        which = float(x[0, 0])
        left = self.left(x) if which > -0.5 else 0.0
        right = self.right(x) if which < 0.5 else 0.0
        return self.out(torch.tanh(left + right))


class Words(nn.Module):
    """An embedding with sparse gradients before a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


def images(count: int, size: int = 8, seed: int = 0) -> list[Batch]:
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 1, 12, 12, generator=random), torch.randint(4, (size,), generator=random))
        for _ in range(count)
    ]


def vectors(count: int, features: int = 5, classes: int = 2, size: int = 6, seed: int = 0) -> list[Batch]:
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, features, generator=random), torch.randint(classes, (size,), generator=random))
        for _ in range(count)
    ]


def build(model: nn.Module, optimizer: torch.optim.Optimizer, procs: int = 1, **options: Any) -> SharedModel:
    return SharedModel.build(model, nn.CrossEntropyLoss(), optimizer, procs=procs, **options)


def attach(shared: SharedModel, worker: int = 0) -> WorkerModel:
    return WorkerModel.attach(shared.structure, shared.regions, worker)


def updating(shared: SharedModel, worker: int = 0, grad_clip: float | None = None) -> AutogradUpdate:
    return AutogradUpdate(attach(shared, worker), grad_clip=grad_clip)


def train(update: AutogradUpdate, batches: Iterable[Batch]) -> list[float]:
    """One update per batch; returns the losses."""
    losses = []
    for x, y in batches:
        losses.append(update.backward((x,), y))
        assert update.is_finite()
        update.apply(None)
    return losses


def train_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], clip: float | None = None
) -> list[float]:
    """The loop everybody writes."""
    losses, loss_of = [], nn.CrossEntropyLoss()
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def side_by_side(
    make: Callable[[], nn.Module], rule: Rule, batches: Sequence[Batch], **options: str
) -> tuple[nn.Module, nn.Module, AutogradUpdate]:
    """Trains the same model twice, through shared memory and plainly: (ours, plain, our update)."""
    torch.manual_seed(0)
    ours = make()
    plain = copy.deepcopy(ours)
    shared = build(ours, rule(ours.parameters()), **options)
    if shared.uses_channels_last:
        plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    update = updating(shared)
    train(update, batches)
    train_plainly(plain, rule(plain.parameters()), batches)
    return ours, plain, update


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)
