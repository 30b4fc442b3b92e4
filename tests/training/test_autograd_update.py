"""Updates through shared memory, compared with the plain torch loop."""

import copy
import functools

import pytest
import torch
from torch import nn, optim

from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    ROUNDS_ONCE,
    Branches,
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

SAME_ORDER = {
    "sgd": functools.partial(optim.SGD, lr=0.05),
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.5),
    "nesterov with decay": functools.partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "dampening": functools.partial(optim.SGD, lr=0.05, momentum=0.9, dampening=0.2),
    "maximize": functools.partial(optim.SGD, lr=1e-3, momentum=0.9, maximize=True),
    "adam unfused": functools.partial(optim.Adam, fused=False),
    "adamw unfused": functools.partial(optim.AdamW, fused=False),
    "amsgrad foreach": functools.partial(optim.Adam, amsgrad=True, foreach=True),
    "adagrad unfused": functools.partial(optim.Adagrad, fused=False),
    "rmsprop": functools.partial(optim.RMSprop, lr=1e-3, momentum=0.5, centered=True),
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "adamax": optim.Adamax,
    "adadelta": optim.Adadelta,
    "asgd": optim.ASGD,
    "rprop": optim.Rprop,
    "adafactor": optim.Adafactor,
}
FUSED = {"adam": optim.Adam, "adamw": optim.AdamW, "adagrad": optim.Adagrad}


@pytest.mark.slow
@pytest.mark.parametrize("rule", SAME_ORDER.values(), ids=SAME_ORDER.keys())
def test_twenty_updates_equal_the_plain_loop_to_the_bit(rule):
    ours, plain, _ = side_by_side(ConvNet, rule, images(20))
    assert same_bits(ours, plain)


@pytest.mark.parametrize("rule", FUSED.values(), ids=FUSED.keys())
def test_fused_kernels_stay_within_a_few_units_in_the_last_place(rule):
    ours, plain, update = side_by_side(ConvNet, rule, images(20))
    assert update.path.startswith("flat")
    # Parameters are below 1: their last place is 6e-8. Twenty updates, each rounded differently in the last
    # place.
    assert largest_difference(ours, plain) < 20 * 6e-8


@pytest.mark.parametrize("name", ["momentum", "adam unfused", "rmsprop", "nadam", "adafactor"])
def test_shared_state_starts_as_stock_does(name):
    ours, plain, _ = side_by_side(ConvNet, SAME_ORDER[name], images(20), state="shared")
    assert same_bits(ours, plain)


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


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam unfused", "nesterov with decay", "adagrad unfused"])
def test_parameters_unused_in_some_batches_are_left_alone_as_in_stock(name):
    batches = vectors(24)
    assert {round(float(x[0, 0].clamp(-1, 1))) for x, _ in batches} == {-1, 0, 1}  # right, both, left
    ours, plain, _ = side_by_side(Branches, SAME_ORDER[name], batches)
    assert same_bits(ours, plain)


def test_a_parameter_never_used_keeps_its_bits_under_weight_decay():
    model = Branches()
    before = model.right.weight.detach().clone()
    update = updating(build(model, optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)))
    train(update, [(x.abs() + 1, y) for x, y in vectors(5)])
    assert torch.equal(model.right.weight, before)


SPARSE = {
    "sgd": functools.partial(optim.SGD, lr=0.1),
    "momentum": functools.partial(optim.SGD, lr=0.1, momentum=0.9),
    "adagrad": functools.partial(optim.Adagrad, lr=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", SPARSE.values(), ids=SPARSE.keys())
def test_sparse_embeddings_equal_stock(rule):
    torch.manual_seed(1)
    batches = [(torch.randint(30, (6, 5)), torch.randint(3, (6,))) for _ in range(20)]
    ours, plain, update = side_by_side(Words, rule, batches)
    momentum = "stock: a parameter has sparse gradients, and SGD has momentum=0.9"
    assert update.path == momentum if rule is SPARSE["momentum"] else update.path.startswith("rows: ")
    # A momentum buffer that torch keeps sparse is dense here: the same sums, in another order. Adagrad's root is MKL's
    # in torch, and the nearest number here.
    assert largest_difference(ours, plain) <= 1e-5
    assert same_bits(ours, plain) or rule is not SPARSE["sgd"] or not ROUNDS_ONCE


def test_sparse_adam_trains_an_embedding():
    torch.manual_seed(1)
    batches = [(torch.randint(30, (6, 5)), torch.randint(3, (6,))) for _ in range(10)]

    def make():
        return nn.Sequential(nn.EmbeddingBag(30, 3, sparse=True))

    ours, plain, _ = side_by_side(make, optim.SparseAdam, batches)
    assert largest_difference(ours, plain) < 1e-6


def test_a_sparse_gradient_has_no_room_in_the_gradient_flat():
    model = Words()
    update = updating(build(model, optim.SGD(model.parameters(), 0.1)))
    assert update._gradients.flats[torch.float32].numel() < model.words.weight.numel()


def test_groups_keep_their_own_rates():
    def rule(params):
        params = list(params)
        return optim.SGD([{"params": params[:2], "lr": 0.3}, {"params": params[2:]}], lr=0.01, momentum=0.9)

    ours, plain, update = side_by_side(ConvNet, rule, images(10))
    assert update.path == "flat: SGD"
    assert same_bits(ours, plain)


def test_two_dtypes_are_two_flats_and_one_rule():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.out = nn.Linear(5, 5).double(), nn.Linear(5, 2)

        def forward(self, x):
            return self.out(self.wide(x.double()).float())

    ours, plain, update = side_by_side(Mixed, SAME_ORDER["adam unfused"], vectors(10))
    assert update.path == "flat: Adam"
    assert same_bits(ours, plain)


def test_a_learning_rate_factor_scales_every_group_from_its_own_rate():
    torch.manual_seed(0)
    ours, batches = ConvNet(), images(4)
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)
    update = updating(build(ours, optim.SGD(ours.parameters(), lr=0.1)))
    rule = optim.SGD(plain.parameters(), lr=0.1)
    for (x, y), factor in zip(batches, (1.0, 0.5, 0.25, 1.0), strict=True):
        update.backward((x,), y)
        update.apply(factor)
        rule.param_groups[0]["lr"] = 0.1 * factor
        train_plainly(plain, rule, [(x, y)])
    assert same_bits(ours, plain)


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_clipping_equals_clip_grad_norm(limit):
    torch.manual_seed(0)
    ours, batches = ConvNet(), images(10)
    plain = copy.deepcopy(ours).to(memory_format=torch.channels_last)
    train(updating(build(ours, optim.SGD(ours.parameters(), 0.5)), grad_clip=limit), batches)
    train_plainly(plain, optim.SGD(plain.parameters(), 0.5), batches, clip=limit)
    # One dot product instead of a norm of norms: the factor differs in the last places.
    assert largest_difference(ours, plain) < 1e-6


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


def test_frozen_parameters_get_no_gradient_and_no_update():
    model = ConvNet()
    model.conv1.weight.requires_grad_(False)
    before = model.conv1.weight.detach().clone()
    worker = attach(build(model, optim.SGD(model.parameters(), 0.1, weight_decay=0.1)))
    train(AutogradUpdate(worker, grad_clip=None), images(3))
    assert worker.model.conv1.weight.grad is None
    assert torch.equal(model.conv1.weight, before)
    assert not torch.equal(model.conv2.weight, torch.zeros_like(model.conv2.weight))


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
    ours, plain, update = side_by_side(ConvNet, SAME_ORDER["momentum"], images(3))
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

    ours, plain, _ = side_by_side(Dropping, SAME_ORDER["momentum"], images(6))
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
