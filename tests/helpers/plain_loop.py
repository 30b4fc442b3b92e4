"""The training loop that anybody would write, with stock torch.optim, over the batches that a job of the same numbers
gets: what one worker is compared with, bit for bit.

`PlainLoop` shares three pure functions with the project, and nothing else: how an epoch is cut, in which order its
samples come (`epoch_order`, the one place that knows), and the seed of a batch's dropout. `train_both` runs a job and
the loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import TensorDataset

import hogwild
from hogwild.api import TrainResult
from hogwild.feeds.sample_order import make_order
from hogwild.scheduling.batch_plan import BatchPlan, batch_seed, updates_planned

Samples = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Rule = Callable[[nn.Module], torch.optim.Optimizer]
Curve = Callable[[torch.optim.Optimizer], LRScheduler]


def epoch_order(data: Samples, seed: int, epoch: int, shuffle: str) -> Tensor:
    """(samples,) int64: which sample stands at which position of `epoch`."""
    samples, row_bytes = len(data[0]), sum(field[0].nbytes for field in data)
    order = make_order(shuffle, samples, seed=seed, row_bytes=row_bytes)
    return torch.from_numpy(order.indices(epoch, 0, samples).copy())


@dataclass(frozen=True, slots=True)
class PlainLoop:
    """`settings` are the keywords of hogwild.train that ask for the same; `curve` makes the stock scheduler."""

    epochs: int = 1
    batch_size: int = 8
    seed: int = 11
    accumulate: int = 1
    grad_clip: float | None = None
    max_updates: int | None = None
    shuffle: str = "full"
    first_epoch: int = 0
    channels_last: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        names = ("epochs", "batch_size", "seed", "accumulate", "grad_clip", "max_updates", "shuffle")
        return {name: getattr(self, name) for name in names}

    def planned_updates(self, samples: int) -> int:
        plan = BatchPlan(samples, self.batch_size)
        return updates_planned(plan, epochs=self.epochs, accumulate=self.accumulate, max_updates=self.max_updates)

    def run(
        self,
        model: nn.Module,
        loss_of: Loss,
        optimizer: torch.optim.Optimizer,
        data: Samples,
        curve: Curve | None = None,
    ) -> int:
        """Trains `model` in place; returns the number of updates."""
        if self.channels_last:
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dim() == 4:  # model.to(memory_format=…) fails on those of five dimensions
                    tensor.data = tensor.data.to(memory_format=torch.channels_last)
        plan = BatchPlan(len(data[0]), self.batch_size)
        scheduler = curve(optimizer) if curve is not None else None
        updates = 0
        for epoch in range(self.first_epoch, self.epochs):
            order = epoch_order(data, self.seed, epoch, self.shuffle)
            for start in range(0, plan.batches, self.accumulate):
                if updates == self.max_updates:
                    return updates
                batches = range(start, min(start + self.accumulate, plan.batches))
                optimizer.zero_grad()
                for first, last in map(plan.positions, batches):
                    self._backward(model, loss_of, [field[order[first:last]] for field in data], epoch, first, batches)
                self._step(model, optimizer, scheduler)
                updates += 1
        return updates

    def _backward(
        self,
        model: nn.Module,
        loss_of: Loss,
        batch: list[Tensor],
        epoch: int,
        first: int,
        batches: range,
    ) -> None:
        inputs, target = batch
        if self.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        # Dropout. Not torch.manual_seed, which writes down the stack for GPUs to come: 2 ms at the depth of a test.
        torch.default_generator.manual_seed(batch_seed(self.seed, epoch, first))
        loss = loss_of(model(inputs), target)
        (loss if len(batches) == 1 else loss * (1 / len(batches))).backward()

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None) -> None:
        if self.grad_clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.grad_clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def by_factor(factor: Callable[[int], float]) -> Curve:
    """torch's own way to multiply every group's rate by a function of the updates done."""
    return lambda optimizer: LambdaLR(optimizer, factor)


@dataclass(frozen=True, slots=True)
class Both:
    """The results of a job and of the plain loop with the same model, rule and data."""

    ours: nn.Module
    plain: nn.Module
    our_rule: torch.optim.Optimizer
    plain_rule: torch.optim.Optimizer
    result: TrainResult
    plain_updates: int

    def differing(self) -> list[str]:
        """Parameters, buffers and optimizer state that differ in a bit, by name."""
        return differing_parameters(self.ours, self.plain) + differing_state(self.our_rule, self.plain_rule)

    def ulps(self) -> float:
        return ulps(self.ours, self.plain)


def train_both(
    make: Callable[[], nn.Module],
    rule: Rule,
    data: Samples,
    loop: PlainLoop,
    run_dir: Path,
    *,
    loss_of: Loss | None = None,
    curve: Curve | None = None,
    procs: int = 0,
    **settings: Any,
) -> Both:
    """Trains what `make` returns twice: by hogwild.train with `procs` (0: the same trainer in this process) and one
    thread, and by the loop, which wants torch.set_num_threads(1). `curve` is the stock scheduler, and
    `settings["lr_schedule"]` ours."""
    loss = loss_of or nn.CrossEntropyLoss()
    ours, plain = make(), make()
    our_rule, plain_rule = rule(ours), rule(plain)
    settings = {**loop.settings, "procs": procs, "threads": 1, "run_dir": run_dir, **settings}
    result = hogwild.train(ours, TensorDataset(*data), loss, our_rule, **settings)
    updates = loop.run(plain, loss, plain_rule, data, curve)
    return Both(ours, plain, our_rule, plain_rule, result, updates)


# ---- how far two results are apart -----------------------------------------------------------------------------------


def ulps(one: nn.Module, other: nn.Module) -> float:
    """The largest distance of two parameters, in units in the last place of the largest number of their tensor. (Of
    each number's own last place it would say nothing: what is nearly zero by cancellation has any error.)"""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(_tensor_ulps(mine.detach(), theirs.detach()) for mine, theirs in pairs)


def _tensor_ulps(one: Tensor, other: Tensor) -> float:
    largest = float(other.abs().max())
    unit = torch.finfo(other.dtype).eps * 2.0 ** math.floor(math.log2(largest)) if largest else 0.0
    distance = float((one.double() - other.double()).abs().max())
    return distance / unit if unit else math.inf if distance else 0.0


def differing_state(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> list[str]:
    """Return the differences, in any bit, between the states of two optimizers, by number and name; [] if there
    are none."""
    mine, theirs = one.state_dict()["state"], other.state_dict()["state"]
    if mine.keys() != theirs.keys():
        return [f"state of parameters {sorted(mine)} and {sorted(theirs)}"]
    return [
        f"{number}.{key}"
        for number, state in theirs.items()
        for key in state.keys() | mine[number].keys()
        if not _same(mine[number].get(key), state.get(key))
    ]


def differing_parameters(one: nn.Module, other: nn.Module) -> list[str]:
    """Parameters and buffers that differ in a bit, by name; [] when none does."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    return [name for name in mine if not torch.equal(mine[name], theirs[name])]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)
