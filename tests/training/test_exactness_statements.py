"""Promises about gradients, optimizer state and random numbers that have no better home."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    Branches,
    ConvNet,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    side_by_side,
    train,
    updating,
    vectors,
)


def test_dense_gradients_are_views_of_one_private_flat() -> None:
    worker = attach(build(model := ConvNet(), optim.SGD(model.parameters(), 0.1)))
    update = AutogradUpdate(worker, grad_clip=None)
    train(update, images(1))
    (x, y), (flat,) = images(1)[0], update._gradients.flats.values()
    update.backward((x,), y)
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for param in worker.model.parameters():
        assert param.grad is not None
        assert first <= param.grad.data_ptr() < last
        assert param.grad.stride() == param.stride()
    assert not flat.is_shared()


class Witness(optim.SGD):
    """Notes for every step which parameters have no gradient."""

    def __init__(self, params: Iterator[nn.Parameter]) -> None:
        super().__init__(params, lr=0.1)
        self.seen: list[list[bool]] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.seen.append([param.grad is None for group in self.param_groups for param in group["params"]])
        super().step(closure)


def test_a_rule_sees_no_gradient_where_stock_torch_has_none() -> None:
    stock: list[Witness] = []

    def rule(params: Iterator[nn.Parameter]) -> Witness:
        stock.append(Witness(params))
        return stock[-1]

    _, _, update = side_by_side(Branches, rule, vectors(24))
    ours = update._optimizer
    assert isinstance(ours, Witness)
    assert ours.seen == stock[-1].seen
    assert len({tuple(which) for which in ours.seen}) == 3, "left, right, both"


@pytest.mark.parametrize("state", ["private", "shared"])
@pytest.mark.parametrize("rule", [optim.Adam, optim.RMSprop, optim.Adagrad, optim.NAdam, optim.Adadelta])
def test_state_has_torchs_own_names_types_and_shapes(rule: type[optim.Optimizer], state: str) -> None:
    torch.manual_seed(0)
    ours, plain = ConvNet(), ConvNet()
    shared = build(ours, rule(ours.parameters()), state=state)
    train(updating(shared), images(2))
    stock = rule(plain.parameters())
    for param in plain.parameters():
        param.grad = torch.ones_like(param)
    stock.step()
    assert kinds(shared.snapshot()["optimizer"]["state"]) == kinds(stock.state_dict()["state"])


def kinds(state: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    return {
        number: {
            key: (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else type(value)
            for key, value in own.items()
        }
        for number, own in state.items()
    }


def test_there_is_no_state_before_the_first_step_and_then_it_lies_in_the_region() -> None:
    shared = build(model := ConvNet(), optim.Adam(model.parameters()))
    worker = attach(shared)
    update = AutogradUpdate(worker, grad_clip=None)
    assert not worker.optimizer.state
    train(update, images(1))
    held = [value for own in worker.optimizer.state.values() for value in own.values()]
    assert len(held) == 3 * 8 and all(value.is_shared() for value in held)


class Drawing(nn.Module):
    """Adds to row i what is drawn for sample i: every row belongs to one batch, so no two workers write one word."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.drawn = nn.Embedding(samples, 1, sparse=True)
        nn.init.zeros_(self.drawn.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.drawn(numbers) * torch.rand(len(numbers), 1)


def minus_sum(output: Tensor, numbers: Tensor) -> Tensor:
    return -output.sum()


@pytest.mark.whole
@pytest.mark.processes
def test_the_random_numbers_of_a_batch_are_the_same_whichever_worker_draws_them(tmp_path: Path) -> None:
    numbers = torch.arange(1600)
    drawn = {}
    for procs in (0, 2):
        model = Drawing(len(numbers))
        hogwild.train(
            model,
            TensorDataset(numbers, numbers),
            minus_sum,
            optim.SGD(model.parameters(), lr=1.0),
            procs=procs,
            threads=1,
            batch_size=4,
            exchange="direct",
            run_dir=tmp_path / f"run-{procs}",
        )
        drawn[procs] = model.drawn.weight.detach()
    assert torch.equal(drawn[0], drawn[2])
    assert len(drawn[0].unique()) > 1500, "every sample its own"
