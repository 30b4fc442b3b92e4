"""A user's own model of sparse embeddings: two towers whose rows are multiplied, as recommenders have them.

    stock      the loop everybody writes, torch's rule over sparse gradients
    ceiling    the same without a step: what an update that costs nothing would leave
    ours       the same model through `AutogradUpdate`, in one process: compiled rows over the flats, the finite check

Fair because all of them have the same indices from memory, one thread, gradients set to None, and read the loss. They
are measured in turn, block by block, so that a busy neighbour meets all; each one's best block counts. What ours does
and the others leave out is to look whether every gradient is finite."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from hogwild.optimizers import RowWiseAdagrad
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate

RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "SparseAdam": partial(torch.optim.SparseAdam, lr=1e-3),
    "RowWiseAdagrad": partial(RowWiseAdagrad, lr=0.05),
}
Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Size:
    """Rows are drawn with a power law: `skew` 0 is uniform, 1 draws row r about as often as 1 / r."""

    users: int = 200_000
    items: int = 100_000
    dim: int = 64
    batch: int = 1024
    skew: float = 0.0
    batches: int = 64


class TwoTowers(nn.Module):
    """Inputs (B,) and (B,) int64: a user and an item each; output (B,): how well they fit."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.users = nn.Embedding(size.users, size.dim, sparse=True)
        self.items = nn.Embedding(size.items, size.dim, sparse=True)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1)


class Batches:
    """The same for everybody who has the same seed; goes round."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self._pairs = [(drawn(size.users, size, random), drawn(size.items, size, random)) for _ in range(size.batches)]
        self._targets = [torch.randn(size.batch, generator=random) for _ in range(size.batches)]
        self._next = 0

    def next(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Users and items (B,) int64, targets (B,) float32."""
        self._next = (self._next + 1) % len(self._pairs)
        return self._pairs[self._next], self._targets[self._next]


def drawn(rows: int, size: Size, random: torch.Generator) -> Tensor:
    """(B,) int64 in [0, rows): the inverse of the power law's distribution function."""
    part = torch.rand(size.batch, generator=random, dtype=torch.float64)
    if size.skew == 1.0:
        return (torch.exp(part * math.log(rows)) - 1).long().clamp_(0, rows - 1)
    return (rows * part ** (1 / (1 - size.skew))).long().clamp_(0, rows - 1)


def stock(rule: str, size: Size) -> Run:
    """One update of torch's own loop."""
    model = TwoTowers(size)
    optimizer, batches, loss_of = RULES[rule](model.parameters()), Batches(size), nn.MSELoss()

    def update() -> None:
        pairs, target = batches.next()
        optimizer.zero_grad()
        loss = loss_of(model(*pairs), target)
        loss.item()
        loss.backward()
        optimizer.step()

    return update


def ceiling(size: Size) -> Run:
    """Forward and backward alone."""
    model, batches, loss_of = TwoTowers(size), Batches(size), nn.MSELoss()

    def update() -> None:
        pairs, target = batches.next()
        model.zero_grad()
        loss = loss_of(model(*pairs), target)
        loss.item()
        loss.backward()

    return update


def ours(rule: str, size: Size) -> tuple[Run, str]:
    """One update as a worker makes it, and which way it goes."""
    model = TwoTowers(size)
    shared = SharedModel.build(model, nn.MSELoss(), RULES[rule](model.parameters()), procs=1)
    update = AutogradUpdate(WorkerModel.attach(shared.structure, shared.regions, 0), grad_clip=None)
    if update.compiled is not None:
        update.compiled.warm_up()
    batches = Batches(size)

    def one() -> None:
        pairs, target = batches.next()
        update.backward(pairs, target)
        assert update.is_finite()
        update.apply(None)

    return one, update.path


def compare(rule: str, size: Size, *, blocks: int = 15) -> dict[str, float | str]:
    """Updates per second of `stock`, `ceiling` and `ours`, and by how much ours is faster than stock."""
    our_run, path = ours(rule, size)
    runs = {"stock": stock(rule, size), "ceiling": ceiling(size), "ours": our_run}
    fastest = dict.fromkeys(runs, math.inf)
    for _ in range(blocks):
        for name, run in runs.items():
            fastest[name] = min(fastest[name], _seconds(run, size.batches))
    rates: dict[str, float | str] = {name: size.batches / seconds for name, seconds in fastest.items()}
    return rates | {"times": fastest["stock"] / fastest["ours"], "path": path}


def _seconds(run: Run, updates: int) -> float:
    began = time.perf_counter()
    for _ in range(updates):
        run()
    return time.perf_counter() - began


def main() -> None:
    """Prints a line per rule."""
    torch.set_num_threads(1)
    for skew in (0.0, 0.8):
        for rule in RULES:
            found = compare(rule, Size(skew=skew))
            figures = ", ".join(f"{name} {found[name]:,.0f}/s" for name in ("stock", "ceiling", "ours"))
            print(f"{rule}, skew {skew}: {figures}; {found['times']:.2f} x; {found['path']}", flush=True)


if __name__ == "__main__":
    main()
