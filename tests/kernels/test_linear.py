"""The compiled linear models against autograd, alone and with private copies of hot features; Adagrad's race."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.errors import ModelError
from hogwild.kernels import linear
from hogwild.kernels.fused import Chunk
from hogwild.kernels.hot_rows import HotRows
from hogwild.kernels.steps import ftrl_step
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.models.sparse_linear import FactorizationMachine, LinearUpdate, SparseLinear
from hogwild.optimizers import FTRL
from tests.helpers.reverted import reverted

FEATURES, SAMPLES = 40, 32
ALL = [*range(FEATURES)]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad, of sparse gradients

LOSSES: dict[str, tuple[nn.Module, int]] = {
    "logistic, signs": (LogisticLoss(), 1),
    "logistic, weighted classes": (LogisticLoss(positive_weight=3.0), 1),
    "logistic, 0 and 1": (nn.BCEWithLogitsLoss(), 1),
    "hinge": (HingeLoss(), 1),
    "squared": (nn.MSELoss(), 1),
    "softmax": (nn.CrossEntropyLoss(), 3),
}
RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "FTRL": lambda params: FTRL(params, lr=0.1, beta=0.1, l1=0.3, l2=0.1),
}
PAIRS = [(name, rule) for name in LOSSES for rule in RULES if (name, rule) != ("softmax", "FTRL")]


@pytest.mark.parametrize("kind", [SparseLinear, FactorizationMachine])
def test_a_feature_without_a_row_and_other_data_are_refused_before_a_kernel_reads_them(kind: type[nn.Module]) -> None:
    model, rows = kind(FEATURES), sparse_rows()
    model.see(rows, None)  # type: ignore[operator]
    for bad in (FEATURES, -1):
        wrong = rows | {"indices": np.append(rows["indices"], bad).astype(np.int32)}
        for given in ((wrong, None), (rows, wrong)):
            with pytest.raises(ModelError, match=f"has features .* but the model has {FEATURES}"):
                model.see(*given)  # type: ignore[operator]
    with pytest.raises(ModelError, match="needs sparse rows"):
        model.see({"user": rows["indices"]}, None)  # type: ignore[operator]


def sparse_rows(seed: int = 0) -> dict[str, np.ndarray]:
    """CSR arrays of SAMPLES rows, one of them empty; the lower a feature, the more frequent it is. Not in the order of
    frequency."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 15, SAMPLES)
    lengths[7] = 0
    rows = [rng.choice(FEATURES, n, replace=False, p=popularity()) for n in lengths]
    return {
        "indptr": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "indices": np.concatenate(rows).astype(np.int32),
        "values": rng.normal(size=lengths.sum()).astype(np.float32),
    }


def popularity() -> np.ndarray:
    weights = 1.0 / np.arange(1, FEATURES + 1)
    return weights / weights.sum()


def most_frequent_first(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same rows as the parser stores them."""
    row = np.repeat(np.arange(SAMPLES), np.diff(arrays["indptr"]))
    order = np.lexsort((arrays["indices"], row))
    return arrays | {key: arrays[key][order] for key in ("indices", "values")}


def with_target(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    if name == "softmax":
        return arrays | {"target": rng.integers(0, 3, SAMPLES)}
    if name == "squared":
        return arrays | {"target": rng.normal(size=SAMPLES).astype(np.float32)}
    signs = rng.choice([-1.0, 1.0], SAMPLES).astype(np.float32)
    return arrays | {"target": np.maximum(signs, 0.0) if name == "logistic, 0 and 1" else signs}


def started(classes: int) -> SparseLinear:
    model = SparseLinear(FEATURES, classes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    return model


def batch_of(arrays: dict[str, np.ndarray], row: int) -> tuple[tuple[Tensor, ...], Tensor]:
    places = slice(arrays["indptr"][row], arrays["indptr"][row + 1])
    inputs = arrays["indices"][places], np.zeros(1, np.int32), arrays["values"][places]
    return tuple(map(torch.from_numpy, inputs)), torch.from_numpy(arrays["target"][row : row + 1])


def by_autograd(
    model: SparseLinear, loss: nn.Module, optimizer: torch.optim.Optimizer, arrays: dict[str, np.ndarray], rows: Any
) -> float:
    """The sum of the losses of batches of one sample each. What no row of the batch has stays as it was."""
    total = 0.0
    for row in rows:
        inputs, target = batch_of(arrays, row)
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        value = loss(model(*inputs), target)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            before[inputs[0].long()] = model.weight[inputs[0].long()]
            model.weight.copy_(before)
        total += value.item()
    return total


def bound(
    model: SparseLinear, loss: nn.Module, optimizer: torch.optim.Optimizer, arrays: Any, hot: Any = None
) -> LinearUpdate:
    update = model.fused(loss, optimizer)
    assert isinstance(update, LinearUpdate), update
    update.bind(model, optimizer, arrays, hot or {})
    return update


def copies(model: SparseLinear, optimizer: torch.optim.Optimizer, rows: np.ndarray) -> dict[str, HotRows]:
    found = {"weight": HotRows(model.weight.detach().numpy(), rows)}
    if isinstance(optimizer, torch.optim.Adagrad):
        found["weight.sum"] = HotRows(optimizer.state[model.weight]["sum"].numpy(), rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_the_kernel_goes_where_autograd_goes_sample_by_sample(name: str, rule: str) -> None:
    """Whichever features are private, in whatever order a row's features are, however the rows are cut."""
    loss, classes = LOSSES[name]
    any_order = with_target(sparse_rows(), name)
    sorted_rows = most_frequent_first(any_order)
    rows = np.random.default_rng(5).permutation(SAMPLES)
    theirs = started(classes)
    their_rule = RULES[rule](theirs.parameters())
    expected = by_autograd(theirs, loss, their_rule, any_order, rows)
    for arrays, hot in ((any_order, []), (sorted_rows, [2, 0, 1, 5]), (any_order, [2, 0, 1, 5]), (any_order, ALL)):
        ours = started(classes)
        our_rule = RULES[rule](ours.parameters())
        private = copies(ours, our_rule, np.array(hot, np.int32)) if hot and rule != "FTRL" else {}
        update = bound(ours, loss, our_rule, arrays, private)
        tallies = []
        for part in np.array_split(rows, 4):
            tallies.append(update.run(Chunk(part, 0)))
            for each in private.values():
                each.flush()
        assert [tally.applied for tally in tallies] == [8] * 4 and not any(tally.not_finite for tally in tallies)
        assert sum(tally.loss for tally in tallies) == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(everything(ours, our_rule), everything(theirs, their_rule), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("over", [-1, 0, 1, int(linear.BLOCK)])
def test_adagrad_of_rows_as_long_as_its_blocks_and_longer(over: int) -> None:
    features, rng = int(linear.BLOCK) + over, np.random.default_rng(7)
    arrays = {
        "indptr": np.array([0, features, 2 * features]),
        "indices": np.tile(np.arange(features, dtype=np.int32), 2),
        "values": rng.normal(size=2 * features).astype(np.float32),
        "target": np.array([1.0, -1.0], np.float32),
    }
    models, rules = [SparseLinear(features, 1, sparse=False) for _ in range(2)], []
    for model in models:
        rules.append(torch.optim.Adagrad(model.parameters(), lr=0.1, weight_decay=0.01))
    by_autograd(models[0], LogisticLoss(), rules[0], arrays, (0, 1))
    assert bound(models[1], LogisticLoss(), rules[1], arrays).run(Chunk(np.arange(2), 0)).applied == 2
    theirs, ours = (everything(model, rule) for model, rule in zip(models, rules, strict=True))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert bool((ours[-1] != 0).all())


def everything(model: SparseLinear, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [param.detach() for param in model.parameters()]
    return found + [piece for state in optimizer.state.values() for key, piece in state.items() if key != "step"]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_weight_decay_is_of_the_features_a_row_has(name: str, rule: str) -> None:
    loss, classes = LOSSES[name]
    arrays = with_target(sparse_rows(), name)
    make = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[rule]
    theirs, ours = started(classes), started(classes)
    theirs.sparse = False  # torch decays no sparse gradient
    rows = np.arange(SAMPLES)
    if rule == "Adagrad":
        rows = rows[:1]  # afterwards its sums of what was not touched differ
    their_rule, our_rule = (make(model.parameters(), lr=0.1, weight_decay=0.3) for model in (theirs, ours))
    expected = by_autograd(theirs, loss, their_rule, arrays, rows)
    assert bound(ours, loss, our_rule, arrays).run(Chunk(rows, 0)).loss == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_what_is_not_finite_is_counted_and_not_applied(name: str, rule: str) -> None:
    loss, classes = LOSSES[name]
    arrays = with_target(sparse_rows(), name)
    arrays["values"][arrays["indptr"][3]] = np.nan
    arrays["values"][arrays["indptr"][11]] = np.inf
    model = started(classes)
    optimizer = RULES[rule](model.parameters())
    update = bound(model, loss, optimizer, arrays)
    before = [each.clone() for each in everything(model, optimizer)]
    tally = update.run(Chunk(np.array([3, 11]), 0))
    assert (tally.applied, tally.not_finite, tally.loss) == (0, 2, 0.0)
    assert everything_equal(everything(model, optimizer), before)
    assert update.run(Chunk(np.array([3, 4, 11, 5]), 0)).applied == 2
    assert all(bool(torch.isfinite(each).all()) for each in everything(model, optimizer))


def everything_equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_no_rows_change_nothing_and_the_rate_is_the_chunks() -> None:
    arrays = with_target(sparse_rows(), "squared")
    model, still = started(1), started(1)
    update = bound(model, nn.MSELoss(), RULES["SGD"](model.parameters()), arrays)
    assert update.run(Chunk(np.empty(0, np.int64), 0)).applied == 0
    assert update.run(Chunk(np.arange(5), 0, rate=0.0)).applied == 5
    assert everything_equal([*model.parameters()], [*still.parameters()])
    update.run(Chunk(np.array([0]), 0, rate=0.5))
    by_autograd(still, nn.MSELoss(), torch.optim.SGD(still.parameters(), lr=0.05), arrays, [0])
    torch.testing.assert_close([*model.parameters()], [*still.parameters()], rtol=1e-5, atol=1e-6)


def test_each_parameter_has_the_numbers_of_its_own_group() -> None:
    arrays = with_target(sparse_rows(), "squared")
    theirs, ours = started(1), started(1)
    rules = [
        torch.optim.SGD([{"params": [model.weight], "lr": 0.02}, {"params": [model.bias], "lr": 0.3}])
        for model in (theirs, ours)
    ]
    by_autograd(theirs, nn.MSELoss(), rules[0], arrays, range(9))
    bound(ours, nn.MSELoss(), rules[1], arrays).run(Chunk(np.arange(9), 0))
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-5, atol=1e-5)


def test_a_model_without_a_bias_has_none_in_the_kernel() -> None:
    for name, (loss, classes) in LOSSES.items():
        arrays = with_target(sparse_rows(), name)
        theirs, ours = SparseLinear(FEATURES, classes, bias=False), SparseLinear(FEATURES, classes, bias=False)
        for make in (RULES[rule] for with_loss, rule in PAIRS if with_loss == name):
            by_autograd(theirs, loss, make(theirs.parameters()), arrays, range(SAMPLES))
            bound(ours, loss, make(ours.parameters()), arrays).run(Chunk(np.arange(SAMPLES), 0))
            torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-5)


def test_a_label_that_is_no_class_is_not_applied() -> None:
    arrays = with_target(sparse_rows(), "softmax")
    arrays["target"][[2, 4]] = 3, -1
    model = started(3)
    tally = bound(model, nn.CrossEntropyLoss(), RULES["SGD"](model.parameters()), arrays).run(Chunk(np.arange(6), 0))
    assert (tally.applied, tally.not_finite) == (4, 2)


@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_two_workers_with_private_copies_find_the_solution_of_one(rule: str) -> None:
    """Two workers in turn, 8 rows each between two flushes, over one model. The optimum is unique (weight decay)."""
    arrays = most_frequent_first(with_target(sparse_rows(), "logistic, signs"))
    make = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[rule]
    found = []
    for workers in (1, 2):
        model = started(1)
        optimizer = make(model.parameters(), lr=0.1, weight_decay=0.01)
        private = [copies(model, optimizer, np.arange(10, dtype=np.int32)) for _ in range(workers)]
        updates = [bound(model, LogisticLoss(), optimizer, arrays, hot) for hot in private]
        for epoch in range(60):
            rows = np.random.default_rng(epoch).permutation(SAMPLES)
            for turn, part in enumerate(np.split(rows, range(8, SAMPLES, 8))):
                updates[turn % workers].run(Chunk(part, 0, rate=1 - epoch / 60))
                for each in private[turn % workers].values() if turn % 3 else ():  # one flushes later than the other
                    each.flush()
        for each in (each for hot in private for each in hot.values()):
            each.flush()
        found.append(loss_of(model, arrays))
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert found[0] < 0.5 * loss_of(started(1), arrays)


def test_ftrl_has_no_private_copies_and_a_nan_stays_one() -> None:
    """Two copies of a weight, each cut to 0, would add up to its opposite."""
    assert LinearUpdate(0, "FTRL").sides == () != LinearUpdate(0, "Adagrad").sides
    one, nan = np.float32(1.0), np.float32(np.nan)
    for given in ((one, nan, one), (nan, one, one), (np.float32(0.0), one, nan)):
        assert np.isnan(ftrl_step.py_func(*given, np.float32(0.0), one, one, np.float32(0.5))).any(), given


def loss_of(model: SparseLinear, arrays: dict[str, np.ndarray]) -> float:
    indices, values = torch.from_numpy(arrays["indices"]), torch.from_numpy(arrays["values"])
    offsets = torch.from_numpy(arrays["indptr"][:-1].astype(np.int32))
    return LogisticLoss()(model(indices, offsets, values), torch.from_numpy(arrays["target"])).item()


def test_adagrads_step_is_bounded_by_its_rate_whatever_becomes_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels as plain Python, their sums reverted between the write and whatever would read them next."""
    for name in ("output", "loss_and_slope", "adagrad_step", "is_finite", "move_one"):
        monkeypatch.setattr(linear, name, getattr(linear, name).py_func)
    monkeypatch.setattr(linear, "ask_ahead", lambda *row: None)  # has no plain form: nothing is computed
    arrays = with_target(sparse_rows(), "logistic, signs")
    data = (arrays["indptr"].view(np.uint64), arrays["indices"].view(np.uint32), arrays["values"])
    none_weighted = np.zeros(0, np.float32)
    rate, eps, none = np.float32(0.1), np.float32(1e-10), np.float32(0.0)
    for row in range(12):
        weight, bias = np.zeros(FEATURES, np.float32), np.zeros(1, np.float32)
        sums = reverted(FEATURES)
        linear.train.py_func(
            np.array([row]), *data, arrays["target"], none_weighted, 0, weight, sums, weight, bias, reverted(1),
            np.zeros(1), weight, sums, np.zeros((2, int(linear.BLOCK)), np.float32), (0, 0),
            (rate, none, eps), (rate, none, eps),
        )  # fmt: skip
        assert 0 < np.abs(weight).max(initial=np.abs(bias[0])) <= rate * 1.0001
        wide, wide_bias = np.zeros((FEATURES, 3), np.float32), np.zeros(3, np.float32)
        linear.softmax.py_func(
            np.array([row]), *data, np.zeros(SAMPLES, np.int64), none_weighted, wide, reverted(wide.shape),
            np.zeros(0, np.uint32), wide[:0], wide[:0], wide_bias, reverted(3), np.zeros((5, 3), np.float32), (0, 0),
            rate, none, eps, rate, none, eps,
        )  # fmt: skip
        assert 0 < np.abs(wide).max(initial=np.abs(wide_bias).max()) <= rate * 1.0001


@pytest.mark.parametrize("name", LOSSES)
def test_autograds_side_is_differentiable(name: str) -> None:
    loss, classes = LOSSES[name]
    arrays = with_target(sparse_rows(), name)
    target = torch.from_numpy(arrays["target"])
    target = target.double() if target.is_floating_point() else target
    indices, offsets = torch.from_numpy(arrays["indices"]), torch.from_numpy(arrays["indptr"][:-1].astype(np.int32))
    values = torch.from_numpy(arrays["values"]).double()
    model = SparseLinear(FEATURES, classes, sparse=False).double()

    def value(weight: Tensor, bias: Tensor) -> Tensor:
        given = {"weight": weight, "bias": bias}
        return loss(torch.func.functional_call(model, given, (indices, offsets, values)), target)

    start = [param.detach().double().requires_grad_() for param in started(classes).parameters()]
    assert torch.autograd.gradcheck(value, start)


class OwnAdagrad(torch.optim.Adagrad):
    pass


def test_what_has_no_kernel_says_why() -> None:
    one, three, wide = started(1), started(3), started(1).double()
    sgd, adagrad = torch.optim.SGD, torch.optim.Adagrad
    refused = [
        (one, nn.L1Loss(), sgd(one.parameters(), lr=0.1), "L1Loss has no kernel"),
        (one, nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)), sgd(one.parameters()), "pos_weight"),
        (one, nn.CrossEntropyLoss(), sgd(one.parameters()), "two classes"),
        (three, nn.CrossEntropyLoss(label_smoothing=0.1), sgd(three.parameters()), "label_smoothing"),
        (three, HingeLoss(), sgd(three.parameters()), "3 outputs"),
        (one, HingeLoss(), sgd(one.parameters(), momentum=0.9), "momentum=0.9"),
        (one, HingeLoss(), adagrad(one.parameters(), lr_decay=0.1), "lr_decay=0.1"),
        (one, HingeLoss(), adagrad(one.parameters(), maximize=True), "maximize"),
        (one, HingeLoss(), adagrad(one.parameters(), eps=0.0), "divide by 0"),
        (one, HingeLoss(), OwnAdagrad(one.parameters()), "not OwnAdagrad"),
        (three, nn.CrossEntropyLoss(), FTRL(three.parameters()), "are SGD, Adagrad, not FTRL"),
        (wide, HingeLoss(), sgd(wide.parameters()), "float32"),
    ]
    for model, loss, optimizer, words in refused:
        assert words in str(model.fused(loss, optimizer))


def test_a_positive_weight_is_torchs_pos_weight_and_a_finite_number_above_0() -> None:
    output, target = torch.linspace(-3, 3, 12), torch.tensor([0.0, 1.0, 1.0]).repeat(4)
    expected = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))(output, target)
    torch.testing.assert_close(LogisticLoss(positive_weight=5.0)(output, target), expected)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive_weight must be"):
            LogisticLoss(positive_weight=wrong)
