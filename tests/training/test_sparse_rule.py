"""Sparse gradients over compiled rows, compared with the optimizer's own step."""

import copy
import functools
import importlib.util
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    ROUNDS_ONCE,
    attach,
    build,
    largest_difference,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    side_by_side,
    train,
    train_plainly,
    updating,
)

pytest.importorskip("numba")

ROWS, WORDS = 40, 7


class TwoTables(nn.Module):
    """Nothing dense: SparseAdam trains it, too."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.one = nn.Embedding(ROWS, width, sparse=True)
        self.other = nn.EmbeddingBag(ROWS, width, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, 0]) + self.other(x)


class Added(nn.Module):
    """Autograd gives both tables the same memory for the values of their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Embedding(ROWS, 3, sparse=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, 0].contiguous()) + self.other(x[:, 1].contiguous())


class Mixed(TwoTables):
    def __init__(self) -> None:
        super().__init__(width=20)
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(super().forward(x))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Rows that occur once, twice, and often."""
    random = torch.Generator().manual_seed(3)
    drawn = [(torch.rand(16, WORDS, generator=random) ** 2 * ROWS).long() for _ in range(count)]
    return [(x, torch.randint(3, (16,), generator=random)) for x in drawn]


RULES = {
    "SGD": functools.partial(optim.SGD, lr=0.3),
    "SGD, maximize": functools.partial(optim.SGD, lr=1e-3, maximize=True),
    "Adagrad": functools.partial(optim.Adagrad, lr=0.1),
    "Adagrad, lr_decay": functools.partial(optim.Adagrad, lr=torch.tensor(0.1), lr_decay=0.1),
    "RowWiseAdagrad": functools.partial(RowWiseAdagrad, lr=0.1),
    "RowWiseAdagrad, weight_decay": functools.partial(RowWiseAdagrad, lr=0.1, weight_decay=0.1),
    "FTRL": functools.partial(FTRL, lr=0.1, beta=0.1, l1=0.1, l2=0.3),
    "SparseAdam": functools.partial(optim.SparseAdam, lr=0.01),
    "SparseAdam, short memory": functools.partial(optim.SparseAdam, lr=0.01, betas=(0.3, 0.5), maximize=True),
}
TABLES_ALONE = ("SparseAdam", "SparseAdam, short memory")
STATE = ("private", "shared")


def state_of(model: nn.Module, update: AutogradUpdate) -> dict[str, Tensor]:
    own = [update._optimizer.state.get(p, {}) for group in update._optimizer.param_groups for p in group["params"]]
    return {f"{i} {key}": torch.as_tensor(value).clone() for i, one in enumerate(own) for key, value in one.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("state", STATE)
def test_thirty_updates_equal_those_of_the_rule_itself(name: str, state: str) -> None:
    make = TwoTables if name in TABLES_ALONE else Mixed
    ours, plain, update = side_by_side(make, RULES[name], batches(30), state=state)
    kind = name.split(",")[0]
    hardened = ", shared state hardened" if state == "shared" and kind != "SGD" else ""
    assert update.path.startswith(f"rows: {kind} in compiled rows, 2 parameters{hardened}")
    if kind == "SGD" and ROUNDS_ONCE:
        assert same_bits(ours, plain)
    # Parameters are below 4: a last place is 2.4e-7. The root is rounded otherwise, and so is each sum.
    assert largest_difference(ours, plain) < 30 * 2.4e-7


@pytest.mark.parametrize("name", ["Adagrad", "RowWiseAdagrad", "SparseAdam", "FTRL"])
def test_the_state_of_one_update_is_that_of_the_rule_itself(name: str) -> None:
    """Both from the same numbers; a row occurs twice, so its gradient is summed before it is squared."""
    once = [(torch.tensor([[1, 2, 2], [5, 6, 7]]), torch.tensor([0, 1]))]
    torch.manual_seed(0)
    ours = TwoTables()
    plain = copy.deepcopy(ours)
    update, rule = (
        updating(build(ours, RULES[name](ours.parameters()), state="shared")),
        RULES[name](plain.parameters()),
    )
    train(update, once)
    train_plainly(plain, rule, once)
    theirs = [rule.state[p] for p in plain.parameters()]
    for key, value in state_of(ours, update).items():
        number, _, piece = key.partition(" ")
        torch.testing.assert_close(
            value, torch.as_tensor(theirs[int(number)][piece]), rtol=3e-7, atol=0, check_dtype=False
        )


def stock_path(model: nn.Module, rule: optim.Optimizer) -> str:
    return updating(build(model, rule)).path


def test_what_has_no_compiled_rule_goes_the_stock_way_and_the_path_says_why(monkeypatch) -> None:
    sparse = "stock: a parameter has sparse gradients"
    model = Mixed()
    momentum = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    assert stock_path(model, momentum) == f"{sparse}, and SGD has momentum=0.9"
    model = TwoTables().double()
    assert (
        stock_path(model, optim.SparseAdam(model.parameters())) == f"{sparse}, and one.weight is float64, not float32"
    )
    model = TwoTables()
    hooked = optim.SGD(model.parameters(), 0.1)
    shared = build(model, hooked)
    worker = attach(shared)
    worker.optimizer.register_step_post_hook(lambda *_: None)
    assert AutogradUpdate(worker, grad_clip=None).path == "stock: SGD has step hooks"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ours, plain, update = side_by_side(Mixed, RULES["Adagrad"], batches(3))
    assert update.path == f"{sparse}; compiled rules for them: pip install 'hogwild[sparse]'"
    assert update.compiled is None
    assert same_bits(ours, plain)


def test_the_other_parameters_go_as_if_there_were_no_sparse_ones() -> None:
    model = Mixed()
    update = updating(build(model, optim.Adagrad(model.parameters())))
    assert update.path == "rows: Adagrad in compiled rows, 2 parameters; flat: Adagrad"
    model = Mixed()
    update = updating(build(model, RowWiseAdagrad(model.parameters())))
    assert update.path.endswith("2 parameters; stock: RowWiseAdagrad is not on the list of elementwise rules")


def test_no_row_rule_makes_a_sparse_tensor_and_autograd_sees_the_write() -> None:
    """Torch's own rules for sparse gradients begin with `coalesce`."""
    model = TwoTables()
    update = updating(build(model, optim.Adagrad(model.parameters())))
    ((x, y),) = batches(1)
    update.backward((x,), y)
    before = [param._version for param in model.parameters()]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        assert update.is_finite()
        update.apply(None)
    calls = [event.key for event in seen.key_averages()]
    assert calls
    assert not [key for key in calls if "coalesce" in key or "add" in key]
    assert [param._version for param in update._optimizer.param_groups[0]["params"]] > before
    assert all(param.grad is None for param in update._optimizer.param_groups[0]["params"])


def test_sparse_adam_makes_its_state_in_its_first_step_and_a_replacement_goes_on_from_it() -> None:
    torch.manual_seed(0)
    ours, data = TwoTables(), batches(9)
    plain = copy.deepcopy(ours)
    shared = build(ours, RULES["SparseAdam"](ours.parameters()))
    assert not any(attach(shared).state.is_present(slot) for slot in shared.layout.state.slots)
    train(updating(shared), data[:5])
    replacement = updating(shared)
    assert {int(value) for key, value in state_of(ours, replacement).items() if key.endswith("step")} == {5}
    train(replacement, data[5:])
    train_plainly(plain, RULES["SparseAdam"](plain.parameters()), data)
    assert largest_difference(ours, plain) < 9 * 2.4e-7


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_clipping_takes_the_norm_of_summed_rows_and_no_gradient_twice(name: str) -> None:
    torch.manual_seed(0)
    ours, data = Added(), batches(6)
    plain = copy.deepcopy(ours)
    train(updating(build(ours, RULES[name](ours.parameters())), grad_clip=0.05), data)
    rule = RULES[name](plain.parameters())
    for x, y in data:
        rule.zero_grad()
        nn.CrossEntropyLoss()(plain(x), y).backward()
        dense = [param.grad.to_dense() for param in plain.parameters()]
        factor = 0.05 / float(torch.stack([grad.norm() for grad in dense]).norm())
        for param in plain.parameters():
            param.grad = param.grad * min(1.0, factor)
        rule.step()
    assert largest_difference(ours, plain) < 1e-5


def test_the_stock_way_clips_shared_memory_once(monkeypatch) -> None:
    rule = functools.partial(optim.SGD, lr=1.0)
    torch.manual_seed(0)
    compiled, data = Added(), batches(3)
    compiled(data[0][0]).square().sum().backward()
    one, other = (param.grad._values().data_ptr() for param in compiled.parameters())
    assert one == other
    compiled.zero_grad()
    stock = copy.deepcopy(compiled)
    train(updating(build(compiled, rule(compiled.parameters())), grad_clip=0.05), data)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    train(updating(build(stock, rule(stock.parameters())), grad_clip=0.05), data)
    assert largest_difference(compiled, stock) < 1e-6


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1e30, 1e30, 0.0], True),
        ([math.nan, 0.0, 0.0], False),
        ([0.0, math.inf, 1.0], False),
        ([3e38, 3e38, 0.0], False),
    ],
    ids=["large", "nan", "infinite", "their sum is infinite"],
)
def test_a_sparse_gradient_is_finite_when_the_sums_of_its_rows_are(values, finite: bool, clip: float | None) -> None:
    model = TwoTables(width=1)
    update = updating(build(model, optim.SGD(model.parameters(), 0.1)), grad_clip=clip)
    param = update._optimizer.param_groups[0]["params"][0]
    param.grad = sparse([4, 4, 9], torch.tensor(values)[:, None], param)
    assert update.is_finite() is finite


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_gradient_that_grows_after_a_check_is_read_again(name: str) -> None:
    """Autograd adds a second backward's gradient in place, to the same tensor; the check has read the first one."""
    torch.manual_seed(0)
    ours, data = TwoTables(), batches(2)
    plain = copy.deepcopy(ours)
    update = updating(build(ours, RULES[name](ours.parameters())))
    rule = RULES[name](plain.parameters())
    for x, y in data:
        update.backward((x,), y, 0.5)
        assert update.is_finite()
        (nn.CrossEntropyLoss()(plain(x), y) / 2).backward()
    update.apply(None)
    rule.step()
    assert largest_difference(ours, plain) < 2.4e-7


@pytest.mark.parametrize("width", [1, 3, 64, 130])
def test_a_number_that_is_not_finite_is_found_in_every_place_of_a_row(width: int) -> None:
    model = TwoTables(width)
    update = updating(build(model, optim.SGD(model.parameters(), 0.1)))
    param = update._optimizer.param_groups[0]["params"][0]
    for place in range(2 * width):
        for wrong in (math.nan, math.inf, -math.inf):
            values = torch.ones(2 * width)
            values[place] = wrong
            param.grad = sparse([4, 9], values.reshape(2, width), param)
            assert not update.is_finite()
            update.discard()
    assert param.grad is None


def sparse(rows: list[int], values: Tensor, param: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, param.shape, check_invariants=False)


@pytest.mark.parametrize("row", [-1, ROWS, 2**40])
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_row_outside_the_parameter_is_an_error_and_nothing_is_written(name: str, row: int) -> None:
    model = TwoTables()
    update = updating(build(model, RULES[name](model.parameters())))
    param = update._optimizer.param_groups[0]["params"][0]
    before = model.state_dict(), copy.deepcopy(model.state_dict())
    param.grad = sparse([0, row], torch.ones(2, 3), param)
    with pytest.raises(IndexError, match="40 rows has an index outside"):
        update.apply(None)
    assert all(torch.equal(before[0][key], before[1][key]) for key in before[0])


def test_rows_are_written_where_the_parameters_lie_now() -> None:
    """In delta that is the worker's copy."""
    torch.manual_seed(0)
    ours, data = TwoTables(), batches(6)
    plain = copy.deepcopy(ours)
    shared = build(ours, RULES["SGD"](ours.parameters()))
    worker = attach(shared)
    update = AutogradUpdate(worker, grad_clip=None)
    train(update, data[:2])
    worker.bind(delta=True)
    flat = ours.one.weight.detach().clone()
    train(update, data[2:4])
    assert torch.equal(ours.one.weight, flat)
    worker.exchange.flush()
    worker.bind(delta=False)
    train(update, data[4:])
    train_plainly(plain, RULES["SGD"](plain.parameters()), data)
    assert largest_difference(ours, plain) < 1e-6


class Tied(TwoTables):
    """The second table is used densely in some batches: its gradient is then no list of rows."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.one(x[:, 0])
        return found + self.other.weight.mean(0) if int(x[0, 0]) % 2 else found + self.other(x)


def test_a_gradient_that_is_dense_for_once_goes_the_stock_way_for_once() -> None:
    data = batches(12)
    assert {int(x[0, 0]) % 2 for x, _ in data} == {0, 1}
    ours, plain, update = side_by_side(Tied, RULES["SGD"], data)
    assert same_bits(ours, plain) if ROUNDS_ONCE else largest_difference(ours, plain) < 12 * 2.4e-7
    assert update.path.startswith("rows: ")


def test_a_warm_up_changes_nothing_and_models_without_sparse_parameters_have_none() -> None:
    for name in ("SGD", "Adagrad", "RowWiseAdagrad", "SparseAdam", "FTRL"):
        model = TwoTables()
        update = updating(build(model, RULES[name](model.parameters())))
        before = copy.deepcopy(model.state_dict()), state_of(model, update)
        assert update.compiled is not None
        assert update.compiled.name == f"rows-{name}"
        update.compiled.warm_up()
        assert all(torch.equal(before[0][key], value) for key, value in model.state_dict().items())
        assert all(torch.equal(before[1][key], value) for key, value in state_of(model, update).items())
    dense = nn.Linear(2, 2)
    assert updating(build(dense, optim.SGD(dense.parameters(), 0.1))).compiled is None


# ---- RowWiseAdagrad itself ------------------------------------------------------------------------------------------


def test_row_wise_adagrad_is_its_formula() -> None:
    model = nn.Linear(5, 4)
    rule = RowWiseAdagrad(model.parameters(), lr=0.5, eps=1e-3, weight_decay=0.1, initial_accumulator_value=0.2)
    weight, sums = model.weight.detach().clone(), torch.full((4,), 0.2)
    assert torch.equal(rule.state[model.weight]["sum"], sums)
    assert rule.state[model.bias]["sum"].shape == (4,)
    for _ in range(3):
        gradient = torch.randn(4, 5)
        model.weight.grad = gradient.clone()
        rule.step()
        gradient = gradient + 0.1 * weight
        sums += (gradient**2).sum(1) / 5
        weight -= 0.5 * gradient / (sums.sqrt() + 1e-3)[:, None]
    torch.testing.assert_close(model.weight.detach(), weight)
    torch.testing.assert_close(rule.state[model.weight]["sum"], sums)


def test_row_wise_adagrad_gives_a_sparse_gradient_what_it_gives_the_dense_one_of_these_rows() -> None:
    gradient = torch.randn(3, 2, 2)
    one, other = (nn.Parameter(torch.ones(6, 2, 2)) for _ in range(2))
    rules = [RowWiseAdagrad([param], weight_decay=decay) for param, decay in ((one, 0.1), (other, 0.1))]
    one.grad = sparse([4, 1, 4], gradient, one)
    other.grad = one.grad.to_dense()
    for rule in rules:
        rule.step()
    touched = [1, 4]
    torch.testing.assert_close(one[touched], other[touched])
    torch.testing.assert_close(rules[0].state[one]["sum"][touched], rules[1].state[other]["sum"][touched])
    assert torch.equal(one[[0, 2, 3, 5]], torch.ones(4, 2, 2))  # weight decay leaves what is not named


def test_row_wise_adagrad_refuses_negative_options_and_saves_its_state() -> None:
    with pytest.raises(ValueError, match="lr is -1"):
        RowWiseAdagrad([nn.Parameter(torch.ones(2, 2))], lr=-1)
    param = nn.Parameter(torch.ones(2, 3))
    rule = RowWiseAdagrad([param])
    param.grad = torch.ones(2, 3)
    rule.step()
    other = RowWiseAdagrad([nn.Parameter(torch.ones(2, 3))])
    other.load_state_dict(rule.state_dict())
    (state,) = other.state.values()
    np.testing.assert_array_equal(state["sum"], [1, 1])


@pytest.mark.parametrize("state", STATE)
def test_row_wise_adagrad_lives_in_shared_memory_under_its_own_name(state: str) -> None:
    model = Mixed()
    shared = build(model, RowWiseAdagrad(model.parameters(), initial_accumulator_value=0.5), procs=2, state=state)
    workers = [updating(shared, number) for number in range(2)]
    sums = [worker._optimizer.state[worker._optimizer.param_groups[0]["params"][0]]["sum"] for worker in workers]
    assert all(torch.equal(each, torch.full((ROWS,), 0.5)) for each in sums)
    train(workers[0], batches(2))
    assert bool((sums[0] > 0.5).any())
    assert bool((sums[1] > 0.5).any()) is (state == "shared")


# ---- FTRL itself ----------------------------------------------------------------------------------------------------


def test_ftrl_is_algorithm_1_of_its_paper() -> None:
    """Weights of 50 features begin at 0, are driven away from it, back and across; some stay 0."""
    alpha, beta, l1, l2 = 0.3, 0.7, 2.0, 0.2
    param = nn.Parameter(torch.zeros(50, dtype=torch.float64))
    rule = FTRL([param], lr=alpha, beta=beta, l1=l1, l2=l2)
    z, n = torch.zeros(2, 50, dtype=torch.float64)
    generator, seen = torch.Generator().manual_seed(0), set()
    for step in range(400):
        weight = torch.where(z.abs() <= l1, 0.0, (z.sign() * l1 - z) / ((beta + n.sqrt()) / alpha + l2))
        torch.testing.assert_close(param.detach(), weight, rtol=1e-8, atol=1e-10)
        seen |= {*weight.sign().tolist()} if step else set()
        drift = 0.2 * math.sin(step / 30) * torch.linspace(-1, 1, 50, dtype=torch.float64)
        g = drift + 0.1 * torch.randn(50, dtype=torch.float64, generator=generator)
        z += g - ((n + g * g).sqrt() - n.sqrt()) / alpha * weight
        n += g * g
        param.grad = g
        rule.step()
    assert seen == {-1.0, 0.0, 1.0}


def test_ftrl_goes_on_from_any_weight_and_without_l1_is_adagrad() -> None:
    """Whoever wrote the weight: here its beginning, in a job another worker."""
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 9)) for _ in range(2))
    rules = FTRL([ours], lr=0.1, beta=1e-3), optim.Adagrad([theirs], lr=0.1, eps=1e-3)
    for param, rule in zip((ours, theirs), rules, strict=True):
        for scale in (1.0, -0.5, 0.25):
            param.grad = torch.full((9,), scale)
            rule.step()
    torch.testing.assert_close(ours, theirs)


def test_ftrl_with_no_rate_or_no_gradient_changes_no_weight() -> None:
    """Even if z is larger than it can be, as after workers have added up their copies of it."""
    for lr, gradient in ((0.0, 1.0), (0.1, 0.0)):
        param = nn.Parameter(torch.tensor([-1.0, 0.0, 2.0]))
        rule = FTRL([param], lr=lr, beta=0.0, l1=0.5)
        rule.state[param]["z"].fill_(0.9)
        param.grad = torch.full((3,), gradient)
        rule.step()
        torch.testing.assert_close(param.detach(), torch.tensor([-1.0, 0.0, 2.0]))
