"""Updates through shared memory, one at a time. Hundreds of them, against the plain loop: test_exactness.py."""

import copy
import functools

import pytest
import torch
from torch import nn, optim

from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    ConvNet,
    Words,
    attach,
    build,
    images,
    largest_difference,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    side_by_side,
    train,
    train_plainly,
    updating,
    vectors,
)

MOMENTUM = functools.partial(optim.SGD, lr=0.05, momentum=0.5)


def test_shared_momentum_with_dampening_scales_the_first_gradient_and_only_that():
    batch = images(1)
    rule = functools.partial(optim.SGD, lr=0.05, momentum=0.9, dampening=0.2)
    ours, _, _ = side_by_side(ConvNet, rule, batch, state="shared")
    scaled, _, _ = side_by_side(ConvNet, functools.partial(optim.SGD, lr=0.05 * 0.8), batch)
    assert largest_difference(ours, scaled) < 1e-7


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (optim.SGD, "flat: SGD"),
        (optim.Adafactor, "stock: Adafactor is not on the list of elementwise rules"),
        (functools.partial(optim.SGD, differentiable=True), "stock: SGD has differentiable=True"),
    ],
)
def test_the_path_says_which_way_and_why(rule, path):
    model = ConvNet()
    assert updating(build(model, rule(model.parameters()))).path == path


def test_the_flat_rule_runs_once_the_state_exists(monkeypatch):
    model = ConvNet()
    update = updating(build(model, optim.Adam(model.parameters())))
    ways = []
    assert update._rule is not None
    flat, stock = update._rule.step, update._step_stock
    monkeypatch.setattr(update._rule, "step", lambda: (ways.append("flat"), flat()))
    monkeypatch.setattr(update, "_step_stock", lambda: (ways.append("stock"), stock()))
    train(update, images(4))
    assert ways == ["stock", "flat", "flat", "flat"]


SPARSE = {
    "sgd": functools.partial(optim.SGD, lr=0.1),
    "momentum": functools.partial(optim.SGD, lr=0.1, momentum=0.9),
    "adagrad": functools.partial(optim.Adagrad, lr=0.1),
}


def test_a_sparse_gradient_has_no_room_in_the_gradient_flat():
    model = Words()
    update = updating(build(model, optim.SGD(model.parameters(), 0.1)))
    assert update._gradients.flats[torch.float32].numel() < model.words.weight.numel()


def test_clipping_reaches_sparse_gradients():
    torch.manual_seed(0)
    model = Words()
    update = updating(build(model, optim.SGD(model.parameters(), 1.0)), grad_clip=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    update.backward((torch.zeros(4, 5, dtype=torch.long),), torch.tensor([0, 1, 2, 0]))  # one row, many times
    update.apply(None)
    moved = sum(float(((p - old) ** 2).detach().sum()) for p, old in zip(model.parameters(), before, strict=True))
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_accumulation_equals_one_plain_step_over_the_scaled_sum():
    torch.manual_seed(0)
    ours, batches = ConvNet(), images(6)
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)
    update = updating(build(ours, optim.SGD(ours.parameters(), 0.1, momentum=0.9)))
    rule, loss_of = optim.SGD(plain.parameters(), 0.1, momentum=0.9), nn.CrossEntropyLoss()
    for i in range(0, 6, 2):
        rule.zero_grad()
        for x, y in batches[i : i + 2]:
            unscaled = update.backward((x,), y, 0.5)
            loss = loss_of(plain(x), y)
            assert unscaled == loss.item()
            (loss * 0.5).backward()
        update.apply(None)
        rule.step()
    assert same_bits(ours, plain)


class Tripled(torch.autograd.Function):
    """A loss whose backward writes into the gradient that it gets, which torch forbids and does not notice."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(3.0)


class Triple(ConvNet):
    def training_step(self, batch, loss):
        x, y = batch
        return Tripled.apply(loss(self(x), y))


def test_a_backward_that_writes_into_the_gradient_of_the_loss_finds_a_new_one_each_time():
    torch.manual_seed(0)
    ours, batches = Triple(), images(4)
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)
    rule = optim.SGD(plain.parameters(), 0.01)
    train(updating(build(ours, optim.SGD(ours.parameters(), 0.01))), batches)
    for batch in batches:
        rule.zero_grad()
        plain.training_step(batch, nn.CrossEntropyLoss()).backward()
        rule.step()
    assert same_bits(ours, plain)


def test_parameters_outside_the_optimizer_gather_no_gradient():
    model = ConvNet()
    worker = attach(build(model, optim.SGD(model.out.parameters(), 0.1)))
    update = AutogradUpdate(worker, grad_clip=None)
    train(update, images(2))
    assert update.path == "flat: SGD"
    assert worker.model.conv1.weight.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_seen(bad):
    model = ConvNet()
    worker = attach(build(model, optim.SGD(model.parameters(), 0.1)))
    worker.model.conv2.bias.register_hook(lambda grad: grad.index_fill(0, torch.tensor([1]), bad))
    update = AutogradUpdate(worker, grad_clip=None)
    x, y = images(1)[0]
    assert update.backward((x,), y) > 0
    assert not update.is_finite()


def test_a_loss_that_is_not_finite_is_seen_until_discarded():
    model = nn.Linear(5, 2)
    update = updating(build(model, optim.SGD(model.parameters(), 0.1)))
    (x, y), before = vectors(1)[0], model.weight.detach().clone()
    update.backward((x * float("inf"),), y)
    assert not update.is_finite()
    update.discard()
    update.backward((x,), y)
    assert update.is_finite()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("size", [1e25, 1e37])
def test_huge_finite_gradients_are_accepted_and_clipped(size):
    model = nn.Linear(5, 2)
    worker = attach(build(model, optim.SGD(model.parameters(), 1.0)))
    worker.model.weight.register_hook(lambda grad: torch.full_like(grad, size))
    update = AutogradUpdate(worker, grad_clip=1.0)
    before = model.weight.detach().clone()
    x, y = vectors(1)[0]
    update.backward((x,), y)
    assert update.is_finite()
    update.apply(None)
    assert float((model.weight - before).detach().norm()) == pytest.approx(1.0, rel=1e-4)


def test_gradients_are_discarded_without_a_trace():
    ours, plain, update = side_by_side(ConvNet, MOMENTUM, images(3))
    x, y = images(1, seed=1)[0]
    update.backward((x,), y)
    update.discard()
    rule = optim.SGD(plain.parameters(), 0.05)
    assert same_bits(ours, plain)
    update._optimizer.param_groups[0]["momentum"] = 0.0
    train(update, [(x, y)])
    train_plainly(plain, rule, [(x, y)])
    assert same_bits(ours, plain)


def test_user_code_that_drops_gradients_costs_nothing_but_time():
    class Dropping(ConvNet):
        def forward(self, x):
            for param in self.parameters():
                param.grad = None
            return super().forward(x)

    ours, plain, _ = side_by_side(Dropping, MOMENTUM, images(6))
    assert same_bits(ours, plain)


def test_autograd_notices_a_write_through_the_flat():
    worker = attach(build(model := nn.Linear(5, 2), optim.SGD(model.parameters(), 0.1)))
    update = AutogradUpdate(worker, grad_clip=None)
    alive = (worker.model.weight**2).sum()
    train(update, vectors(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        alive.backward()


def test_step_hooks_of_the_user_run():
    calls = []

    class Hooked(optim.SGD):
        pass

    model = nn.Linear(5, 2)
    worker = attach(build(model, Hooked(model.parameters(), 0.1)))
    worker.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(AutogradUpdate(worker, grad_clip=None), vectors(3))
    assert len(calls) == 3


def test_two_workers_in_turn_train_one_model():
    torch.manual_seed(0)
    model, batches = ConvNet(), images(1)
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
    updates = [updating(shared, 0), updating(shared, 1)]
    losses = [train(updates[i % 2], batches)[0] for i in range(60)]
    assert losses[-1] < losses[0] / 2
    assert same_bits(updates[0]._model, updates[1]._model)
