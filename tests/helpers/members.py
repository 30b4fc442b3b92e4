"""Workers of a shared model, in this process, in turn: each with its own copy of the parameters, or on the flats."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim

from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import Batch, Rule, attach, build, train

SGD = functools.partial(optim.SGD, lr=0.05)


@dataclass
class Member:
    """One worker of a shared model."""

    model: WorkerModel
    update: AutogradUpdate

    @classmethod
    def of(cls, shared: SharedModel, worker: int = 0, *, delta: bool = True) -> "Member":
        model = attach(shared, worker)
        member = cls(model, AutogradUpdate(model, grad_clip=None))
        model.bind(delta=delta)
        return member

    def values(self) -> list[Tensor]:
        return [param.detach().clone() for param in self.model.params]


def two_of(make: Callable[[], nn.Module], rule: Rule = SGD) -> tuple[SharedModel, Member, Member]:
    torch.manual_seed(0)
    model = make()
    shared = build(model, rule(model.parameters()), procs=2)
    return shared, Member.of(shared, 0), Member.of(shared, 1)


def one_of(model: nn.Module, rule: Rule = SGD) -> tuple[SharedModel, Member]:
    shared = build(model, rule([param for param in model.parameters() if param.requires_grad]))
    return shared, Member.of(shared)


def flats(shared: SharedModel) -> list[Tensor]:
    """Return the parameters as the flats hold them."""
    return [slot.view(shared.regions).clone() for slot in shared.layout.flats.params]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def flushing(member: Member, batches: Sequence[Batch], every: int) -> None:
    """An update per batch, a flush after each `every`."""
    for start in range(0, len(batches), every):
        train(member.update, batches[start : start + every])
        member.model.exchange.flush()
