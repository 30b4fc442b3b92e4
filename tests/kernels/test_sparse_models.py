"""The compiled models over sparse rows (linear, softmax, factorisation machine, field-aware machine). One contract, for
each family, loss and rule: sample by sample the kernel goes where autograd and torch's optimizer go. Then what one
family has alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.errors import ModelError
from hogwild.kernels import sparse_models, steps
from hogwild.kernels.fused import Chunk, FusedUpdate
from hogwild.kernels.hot_rows import HotRows
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.models import DeepFm, FactorizationMachine, FieldFactorizationMachine, SparseLinear
from hogwild.models.sparse_linear import LinearUpdate
from hogwild.optimizers import FTRL
from tests.helpers.reverted import reverted

FEATURES, FIELDS, SAMPLES, CLASSES = 40, 5, 24, 3
VALUES = FEATURES // FIELDS
ALL = [*range(FEATURES)]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad, of sparse gradients

Rows = dict[str, np.ndarray]
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params, decay=0.0: torch.optim.SGD(params, lr=0.02, weight_decay=decay),
    "Adagrad": lambda params, decay=0.0: torch.optim.Adagrad(params, lr=0.05, weight_decay=decay),
    "FTRL": lambda params, decay=0.0: FTRL(params, lr=0.05, beta=0.1, l1=0.1, l2=decay),
}
LOSSES: dict[str, nn.Module] = {
    "logistic": LogisticLoss(),
    "rare positives": LogisticLoss(positive_weight=3.0),
    "0 and 1": nn.BCEWithLogitsLoss(),
    "hinge": HingeLoss(),
    "squared": nn.MSELoss(),
}


@dataclass(frozen=True)
class Family:
    """A model with a kernel. `hot`: the parameters whose rows may be private to a worker."""

    make: Callable[..., Any]
    hot: tuple[str, ...] = ()
    losses: tuple[str, ...] = tuple(LOSSES)
    rules: tuple[str, ...] = tuple(RULES)


FAMILIES = {
    "linear": Family(lambda **more: SparseLinear(FEATURES, 1, **more), ("weight",)),
    "no bias": Family(lambda **more: SparseLinear(FEATURES, 1, bias=False, **more), losses=("logistic",)),
    "softmax": Family(
        lambda **more: SparseLinear(FEATURES, CLASSES, **more), ("weight",), ("softmax",), ("SGD", "Adagrad")
    ),
    "softmax, no bias": Family(
        lambda **more: SparseLinear(FEATURES, CLASSES, bias=False, **more), (), ("softmax",), ("SGD", "Adagrad")
    ),
    "machine": Family(lambda **more: FactorizationMachine(FEATURES, 5, **more), ("weight", "factors")),
    "fields": Family(lambda **more: FieldFactorizationMachine(FEATURES, FIELDS, 3, **more)),
}
CONTRACT = [(name, loss, rule) for name, one in FAMILIES.items() for loss in one.losses for rule in one.rules]
OF_RULES = [(name, rule) for name, one in FAMILIES.items() for rule in one.rules]


def rows_of(family: str, loss: str = "logistic", *, in_order: bool = False) -> Rows:
    """CSR arrays. The lower a feature, the more frequent it is; the third row is empty, but of fields each row has a
    feature of each. `in_order`: the most frequent features of a row come first, as the parser stores them."""
    rng = np.random.default_rng(0)
    popularity = 1.0 / np.arange(1, FEATURES + 1)
    lengths = rng.integers(2, 15, SAMPLES)
    lengths[2] = 0
    rows = [rng.choice(FEATURES, n, replace=False, p=popularity / popularity.sum()) for n in lengths]
    if family == "fields":
        lengths = np.full(SAMPLES, FIELDS)
        rows = [*(rng.integers(0, VALUES, (SAMPLES, FIELDS)) + np.arange(FIELDS) * VALUES)]
    places = [np.argsort(row) if in_order else np.arange(len(row)) for row in rows]
    values = [rng.normal(1.0, 0.3, len(row)) for row in rows]
    targets = {
        "softmax": rng.integers(0, CLASSES, SAMPLES),
        "squared": rng.normal(size=SAMPLES).astype(np.float32),
        "0 and 1": rng.integers(0, 2, SAMPLES).astype(np.float32),
    }
    return {
        "indptr": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "indices": np.concatenate([row[at] for row, at in zip(rows, places, strict=True)]).astype(np.int32),
        "values": np.concatenate([row[at] for row, at in zip(values, places, strict=True)]).astype(np.float32),
        "target": targets.get(loss, rng.choice([-1.0, 1.0], SAMPLES).astype(np.float32)),
    }


def loss_named(name: str) -> nn.Module:
    return nn.CrossEntropyLoss() if name == "softmax" else LOSSES[name]


def started(make: Callable[..., Any], **more: Any) -> Any:
    model, generator = make(**more), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
    return model


def inputs_of(arrays: Rows, begin: int, end: int) -> tuple[Tensor, ...]:
    first, last = arrays["indptr"][begin], arrays["indptr"][end]
    offsets = (arrays["indptr"][begin:end] - first).astype(np.int32)
    return tuple(map(torch.from_numpy, (arrays["indices"][first:last], offsets, arrays["values"][first:last])))


def by_autograd(model: Any, loss: nn.Module, optimizer: torch.optim.Optimizer, arrays: Rows, rows: Any) -> float:
    """Return the sum of the losses of batches of one sample each. A number that the sample's output does not depend on
    stays as it was, with its sums; so does everything for a sample of weight 0."""
    total, params = 0.0, [*model.parameters()]
    for row in rows:
        given = [torch.from_numpy(arrays["target"][row : row + 1])]
        if isinstance(loss, WeightedLoss):
            given.append(torch.from_numpy(arrays["weight"][row : row + 1]))
            if not given[1].item():
                continue
        inputs = inputs_of(arrays, row, row + 1)
        used = [one != 0 for one in torch.autograd.grad(model(*inputs).sum(), params)]
        before = [tensors_of(optimizer, param) for param in params]
        optimizer.zero_grad()
        value = loss(model(*inputs), *given)
        value.backward()
        optimizer.step()
        for param, mask, old in zip(params, used, before, strict=True):
            for tensor, kept in zip(tensors_of(optimizer, param, copy=False), old, strict=True):
                tensor.copy_(torch.where(mask, tensor, kept))
        total += value.item()
    return total


def tensors_of(optimizer: torch.optim.Optimizer, param: Tensor, *, copy: bool = True) -> list[Tensor]:
    """Return a parameter, and its sums and its z where the rule has them."""
    state = optimizer.state.get(param, {})
    found = [param.detach(), *(state[key] for key in ("sum", "z") if key in state)]
    return [one.clone() for one in found] if copy else found


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [one for param in model.parameters() for one in tensors_of(optimizer, param)]


def bound(model: Any, loss: Any, optimizer: torch.optim.Optimizer, arrays: Rows, hot: Any = None) -> FusedUpdate:
    update = model.fused(loss, optimizer)
    assert not isinstance(update, str), update
    update.bind(model, optimizer, arrays, hot or {})
    return update


def copies(model: nn.Module, names: Any, optimizer: torch.optim.Optimizer, rows: list[int]) -> dict[str, HotRows]:
    found, chosen = {}, np.array(rows, np.int32)
    for name in names if rows else ():
        param = model.get_parameter(name)
        found[name] = HotRows(param.detach().numpy(), chosen)
        if isinstance(optimizer, torch.optim.Adagrad):
            found[f"{name}.sum"] = HotRows(optimizer.state[param]["sum"].numpy(), chosen)
    return found


# ---- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "loss", "rule"), CONTRACT)
def test_the_kernel_goes_where_autograd_goes_sample_by_sample(name: str, loss: str, rule: str) -> None:
    """Whichever features are private, in whatever order a row's features are, however the rows are cut; with weights of
    samples, one of them 0, and with a decay, which is of the numbers that a sample uses."""
    family, rows = FAMILIES[name], np.random.default_rng(5).permutation(SAMPLES)
    weight = np.random.default_rng(6).uniform(0.1, 4.0, SAMPLES).astype(np.float32)
    weight[7] = 0
    plain, sorted_rows = rows_of(name, loss), rows_of(name, loss, in_order=True)
    for decay, extra, judge in (
        (0.0, {}, loss_named(loss)),
        (0.3, {"weight": weight}, WeightedLoss(loss_named(loss), float(weight.mean()))),
    ):
        theirs = started(family.make, sparse=False)  # torch decays no sparse gradient
        their_rule = RULES[rule](theirs.parameters(), decay)
        expected = by_autograd(theirs, judge, their_rule, plain | extra, rows)
        for arrays, hot in ((plain, []), (sorted_rows, [2, 0, 1, 5]), (plain, [2, 0, 1, 5]), (sorted_rows, ALL)):
            ours = started(family.make)
            our_rule = RULES[rule](ours.parameters(), decay)
            private = copies(ours, family.hot, our_rule, hot if rule != "FTRL" else [])
            update = bound(ours, judge, our_rule, arrays | extra, private)
            tallies = []
            for part in np.array_split(rows, 4):
                tallies.append(update.run(Chunk(part, 0)))
                for each in private.values():
                    each.flush()
            assert [(tally.applied, tally.not_finite) for tally in tallies] == [(SAMPLES // 4, 0)] * 4
            assert sum(tally.loss for tally in tallies) == pytest.approx(expected, rel=1e-5)
            torch.testing.assert_close(everything(ours, our_rule), everything(theirs, their_rule), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "rule"), OF_RULES)
def test_what_is_not_finite_is_counted_and_not_applied_and_no_rows_change_nothing(name: str, rule: str) -> None:
    loss = FAMILIES[name].losses[0]
    arrays, model = rows_of(name, loss), started(FAMILIES[name].make)
    arrays["values"][arrays["indptr"][[4, 9]]] = np.nan, np.inf
    optimizer = RULES[rule](model.parameters())
    update = bound(model, loss_named(loss), optimizer, arrays)
    before = everything(model, optimizer)
    assert update.run(Chunk(np.empty(0, np.int64), 0)).applied == 0
    tally = update.run(Chunk(np.array([4, 9]), 0))
    assert (tally.applied, tally.not_finite, tally.loss) == (0, 2, 0.0)
    assert all(map(torch.equal, everything(model, optimizer), before))
    assert update.run(Chunk(np.array([4, 5, 9, 6]), 0)).applied == 2
    assert all(bool(torch.isfinite(each).all()) for each in everything(model, optimizer))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_parameter_has_the_numbers_of_its_own_group_and_the_chunks_factor(name: str) -> None:
    loss = FAMILIES[name].losses[-1]
    arrays, theirs, ours = rows_of(name, loss), started(FAMILIES[name].make, sparse=False), started(FAMILIES[name].make)
    rates = {"weight": 0.02, "bias": 0.3, "factors": 0.07}
    rules = [
        torch.optim.SGD([{"params": [param], "lr": rates[key] * part} for key, param in model.named_parameters()])
        for model, part in ((theirs, 0.5), (ours, 1.0))
    ]
    update = bound(ours, loss_named(loss), rules[1], arrays)
    assert update.run(Chunk(np.arange(5), 0, rate=0.0)).applied == 5
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    by_autograd(theirs, loss_named(loss), rules[0], arrays, range(9))
    update.run(Chunk(np.arange(9), 0, rate=0.5))
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "softmax", "machine", "fields"])
def test_adagrads_step_is_bounded_by_its_rate_whatever_becomes_of_the_sums(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels as plain Python, their sums reverted between the write and whatever would read them next."""
    for module in (steps, sparse_models):
        for key, thing in [*vars(module).items()]:
            if hasattr(thing, "py_func"):
                monkeypatch.setattr(module, key, thing.py_func)
    monkeypatch.setattr(sparse_models, "ask_ahead", lambda *row: None)  # has no plain form: nothing is computed
    numbers = np.float32(0.1), np.float32(0.0), np.float32(1e-10)
    arrays = rows_of(name, "softmax" if name == "softmax" else "logistic")
    for row in (4, 5, 6):
        before, after = started(FAMILIES[name].make), started(FAMILIES[name].make)
        update = after.fused(loss_named(FAMILIES[name].losses[0]), RULES["Adagrad"](after.parameters()))
        update.bind(after, RULES["Adagrad"](after.parameters()), arrays, {})
        tables, bias, private = update._views
        tables, bias = tuple(map(with_reverted_sums, tables)), with_reverted_sums(bias)
        if name == "linear":
            private = tables[0], private[1]
        kinds = () if name == "softmax" else (0,)
        call = getattr(sparse_models, update.family)
        rule = (0,) * steps.ADAGRAD, (numbers,) * (len(tables) + 1)
        call(np.array([row]), update._data, *kinds, tables, bias, private, *rule)
        moved = [
            (new - old).abs().max().item() for old, new in zip(before.parameters(), after.parameters(), strict=True)
        ]
        assert min(moved) > 0 and max(moved) <= 0.1 * 1.0001


def with_reverted_sums(table: Any) -> Any:
    return table[0], reverted(table[0].shape), table[2]


@pytest.mark.parametrize(("name", "loss"), [(name, loss) for name, one in FAMILIES.items() for loss in one.losses])
def test_autograds_side_is_differentiable(name: str, loss: str) -> None:
    arrays, model = rows_of(name, loss), started(FAMILIES[name].make, sparse=False).double()
    indices, offsets, values = inputs_of(arrays, 0, SAMPLES)
    target = torch.from_numpy(arrays["target"])
    target = target.double() if target.is_floating_point() else target
    names = [key for key, _ in model.named_parameters()]

    def value(*params: Tensor) -> Tensor:
        given = dict(zip(names, params, strict=True))
        output = torch.func.functional_call(model, given, (indices, offsets, values.double()))
        return loss_named(loss)(output, target)

    start = tuple(param.detach().requires_grad_() for param in model.parameters())
    assert torch.autograd.gradcheck(value, start, fast_mode=True)


# ---- linear models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [-1, 0, 1, int(sparse_models.BLOCK)])
def test_adagrad_of_rows_as_long_as_its_blocks_and_longer(over: int) -> None:
    features, rng = int(sparse_models.BLOCK) + over, np.random.default_rng(7)
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


def test_a_label_that_is_no_class_is_not_applied() -> None:
    arrays, model = rows_of("softmax", "softmax"), started(FAMILIES["softmax"].make)
    arrays["target"][[2, 4]] = 3, -1
    tally = bound(model, nn.CrossEntropyLoss(), RULES["SGD"](model.parameters()), arrays).run(Chunk(np.arange(6), 0))
    assert (tally.applied, tally.not_finite) == (4, 2)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_weights_of_classes_are_weights_of_their_samples_over_the_mean_of_the_data(
    rule: str, is_weighted: bool
) -> None:
    arrays, classes = rows_of("softmax", "softmax"), torch.tensor([0.5, 4.0, 1.0])
    weights = np.random.default_rng(6).uniform(0.1, 4.0, SAMPLES).astype(np.float32)
    weight = classes.numpy()[arrays["target"]] * (weights if is_weighted else 1)
    theirs, ours = started(FAMILIES["softmax"].make, sparse=False), started(FAMILIES["softmax"].make)
    their_rule, our_rule = RULES[rule](theirs.parameters()), RULES[rule](ours.parameters())
    judge = WeightedLoss(nn.CrossEntropyLoss(), float(weight.mean()))
    expected = by_autograd(theirs, judge, their_rule, arrays | {"weight": weight}, range(SAMPLES))
    loss: Any = nn.CrossEntropyLoss(weight=classes)
    given = arrays | ({"weight": weights} if is_weighted else {})
    update = bound(ours, WeightedLoss(loss, 7.0) if is_weighted else loss, our_rule, given)
    assert update.run(Chunk(np.arange(SAMPLES), 0)).loss == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-5, atol=1e-5)


def test_a_batch_of_classes_that_weigh_nothing_changes_nothing() -> None:
    """A stream binds batch after batch, so that all samples bound at once may be of a class with weight 0."""
    arrays, model = rows_of("softmax", "softmax"), started(FAMILIES["softmax"].make)
    arrays["target"] = np.zeros(SAMPLES, np.int64)
    before = [param.detach().clone() for param in model.parameters()]
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 4.0]))
    tally = bound(model, loss, RULES["SGD"](model.parameters()), arrays).run(Chunk(np.arange(SAMPLES), 0))
    assert (tally.loss, tally.applied, tally.not_finite) == (0.0, SAMPLES, 0)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_two_workers_with_private_copies_find_the_solution_of_one(rule: str) -> None:
    """Two workers in turn, 8 rows each between two flushes, over one model. The optimum is unique (weight decay)."""
    arrays = rows_of("linear", in_order=True)
    make = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[rule]
    found = []
    for workers in (1, 2):
        model = started(FAMILIES["linear"].make)
        optimizer = make(model.parameters(), lr=0.1, weight_decay=0.01)
        private = [copies(model, ("weight",), optimizer, [*range(10)]) for _ in range(workers)]
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
    assert found[0] < 0.5 * loss_of(started(FAMILIES["linear"].make), arrays)


def loss_of(model: SparseLinear, arrays: dict[str, np.ndarray]) -> float:
    indices, values = torch.from_numpy(arrays["indices"]), torch.from_numpy(arrays["values"])
    offsets = torch.from_numpy(arrays["indptr"][:-1].astype(np.int32))
    return LogisticLoss()(model(indices, offsets, values), torch.from_numpy(arrays["target"])).item()


def test_ftrl_has_no_private_copies_and_a_nan_stays_one() -> None:
    """Two copies of a weight, each cut to 0, would add up to its opposite."""
    assert LinearUpdate(0, "FTRL").sides == () != LinearUpdate(0, "Adagrad").sides
    one, nan = np.float32(1.0), np.float32(np.nan)
    for given in ((one, nan, one), (nan, one, one), (np.float32(0.0), one, nan)):
        assert np.isnan(steps.ftrl_step.py_func(*given, np.float32(0.0), one, one, np.float32(0.5))).any(), given


class OwnAdagrad(torch.optim.Adagrad):
    pass


def test_what_has_no_kernel_says_why() -> None:
    one, three, wide = SparseLinear(FEATURES), SparseLinear(FEATURES, 3), SparseLinear(FEATURES).double()
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


@pytest.mark.parametrize("kind", [SparseLinear, FactorizationMachine])
def test_a_feature_without_a_row_and_other_data_are_refused_before_a_kernel_reads_them(kind: type[nn.Module]) -> None:
    model, rows = kind(FEATURES), rows_of("linear")
    model.on_data(rows, None)  # type: ignore[operator]
    for bad in (FEATURES, -1):
        wrong = rows | {"indices": np.append(rows["indices"], bad).astype(np.int32)}
        for given in ((wrong, None), (rows, wrong)):
            with pytest.raises(ModelError, match=f"has features .* but the model has {FEATURES}"):
                model.on_data(*given)  # type: ignore[operator]
    with pytest.raises(ModelError, match="needs sparse rows"):
        model.on_data({"user": rows["indices"]}, None)  # type: ignore[operator]


# ---- machines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["machine", "fields", "deep"])
def test_the_forward_is_the_papers_sum_over_pairs(name: str) -> None:
    """DeepFm is a machine plus a network over its vectors side by side; its network alone has dense gradients."""
    deep = Family(lambda **more: DeepFm(FEATURES, FIELDS, 3, hidden=(6,), **more))
    model = started((FAMILIES | {"deep": deep})[name].make)
    arrays = rows_of("machine" if name == "machine" else "fields")
    found = model(*inputs_of(arrays, 0, SAMPLES))
    for row in range(SAMPLES):
        features, _, values = inputs_of(arrays, row, row + 1)
        vectors = model.factors[features.long()]
        expected = model.bias[0] + (model.weight[features.long(), 0] * values).sum()
        for a in range(len(features)):
            for b in range(a):
                one, other = vectors[a], vectors[b]
                if name == "fields":
                    one, other = one.view(FIELDS, 3)[b], other.view(FIELDS, 3)[a]
                expected = expected + values[a] * values[b] * (one @ other)
        if name == "deep":
            expected = expected + model.layers((vectors * values[:, None]).reshape(1, -1))[0, 0]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)
    if name == "deep":
        found.sum().backward()
        layers = model.layers.layers[0].weight.grad
        assert model.factors.grad.is_sparse and model.weight.grad.is_sparse and not layers.is_sparse


def test_pairs_are_learnt_that_no_linear_model_can_tell_apart() -> None:
    """Exclusive or of two features: every feature alone says nothing."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2, (2, 400))
    arrays = {
        "indptr": np.arange(0, 802, 2),
        "indices": np.stack([first, 2 + second], 1).reshape(-1).astype(np.int32),
        "values": np.ones(800, np.float32),
        "target": np.where(first == second, 1.0, -1.0).astype(np.float32),
    }
    model = started(FAMILIES["machine"].make)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    update = bound(model, LogisticLoss(), optimizer, arrays)
    for epoch in range(10):
        update.run(Chunk(np.random.default_rng(epoch).permutation(400), 0))
    logits = model(*inputs_of(arrays, 0, 400))
    assert bool(((logits > 0) == (torch.from_numpy(arrays["target"]) > 0)).all())


def test_hot_rows_of_a_machine_are_hot_in_all_its_parameters_and_their_sums() -> None:
    model, arrays = started(FAMILIES["machine"].make), rows_of("machine")
    optimizer = torch.optim.Adagrad(model.parameters())
    private = copies(model, ("weight", "factors"), optimizer, [1, 2])
    for missing in private:
        with pytest.raises(ValueError, match=r"hot rows|same ones"):
            bound(model, nn.MSELoss(), optimizer, arrays, {name: private[name] for name in private if name != missing})


@pytest.mark.parametrize("kind", [FieldFactorizationMachine, DeepFm])
def test_rows_without_a_feature_of_each_field_are_refused(kind: Any) -> None:
    model, arrays = started(lambda: kind(FEATURES, FIELDS, 3)), rows_of("fields")
    model.on_data(arrays, None)
    short = arrays | {"indptr": np.append(arrays["indptr"][:-1], arrays["indptr"][-1] - 1)}
    with pytest.raises(ModelError, match=r"one feature of each of 5 fields .* rows with 4 to 5"):
        model.on_data(arrays, short)
