"""Weights of samples and of classes in the compiled updates, against autograd with the loss of weighted data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.kernels.fused import Chunk
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.models import FactorizationMachine, FieldFactorizationMachine, SparseLinear
from hogwild.optimizers import FTRL

FIELDS, VALUES, SAMPLES = 3, 4, 20
FEATURES = FIELDS * VALUES
LOSSES: dict[str, Any] = {
    "logistic": LogisticLoss(),
    "rare positives": LogisticLoss(positive_weight=3.0),
    "0 and 1": nn.BCEWithLogitsLoss(),
    "hinge": HingeLoss(),
    "squared": nn.MSELoss(),
}
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "FTRL": lambda params: FTRL(params, lr=0.05, beta=0.1, l1=0.1, l2=0.1),
}
MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: SparseLinear(FEATURES),
    "machine": lambda: FactorizationMachine(FEATURES, 3),
    "fields": lambda: FieldFactorizationMachine(FEATURES, FIELDS, 2),
}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad, of sparse gradients


def weighted_rows(classes: int = 2) -> dict[str, np.ndarray]:
    """CSR arrays with a feature of each field, and weights, of which the third is 0."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, VALUES, (SAMPLES, FIELDS)) + np.arange(FIELDS) * VALUES
    weights = rng.uniform(0.1, 4.0, SAMPLES).astype(np.float32)
    weights[2] = 0
    target = rng.integers(0, classes, SAMPLES)
    return {
        "indptr": np.arange(SAMPLES + 1) * FIELDS,
        "indices": chosen.reshape(-1).astype(np.int32),
        "values": rng.normal(1.0, 0.3, SAMPLES * FIELDS).astype(np.float32),
        "weight": weights,
        "target": target if classes > 2 else target.astype(np.float32),
    }


def started(make: Callable[[], Any]) -> Any:
    model = make()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
    return model


def by_autograd(model: nn.Module, loss: WeightedLoss, rule: torch.optim.Optimizer, arrays: Any, weight: Any) -> float:
    """The sum of the losses of batches of one sample each."""
    total = 0.0
    for row in range(SAMPLES):
        part = slice(row * FIELDS, (row + 1) * FIELDS)
        inputs = arrays["indices"][part], np.zeros(1, np.int32), arrays["values"][part]
        output = model(*map(torch.from_numpy, inputs))
        rule.zero_grad()
        value = loss(output, *(torch.from_numpy(each[row : row + 1]) for each in (arrays["target"], weight)))
        value.backward()
        rule.step()
        total += value.item()
    return total


def everything(model: nn.Module) -> list[Tensor]:
    return [param.detach() for param in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", MODELS)
def test_the_kernel_goes_where_autograd_goes_with_weights(kind: str, name: str, rule: str) -> None:
    arrays, theirs, ours = weighted_rows(), started(MODELS[kind]), started(MODELS[kind])
    loss = WeightedLoss(LOSSES[name], float(arrays["weight"].mean()))
    their_rule, our_rule = RULES[rule](theirs.parameters()), RULES[rule](ours.parameters())
    expected = by_autograd(theirs, loss, their_rule, arrays, arrays["weight"])
    update = ours.fused(loss, our_rule)
    assert not isinstance(update, str), update
    update.bind(ours, our_rule, arrays, {})
    tally = update.run(Chunk(np.arange(SAMPLES), 0))
    assert tally.applied == SAMPLES and tally.loss == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(everything(ours), everything(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_weights_of_classes_are_weights_of_their_samples_over_the_mean_of_the_data(
    rule: str, is_weighted: bool
) -> None:
    arrays, classes = weighted_rows(3), torch.tensor([0.5, 4.0, 1.0])
    weight = classes.numpy()[arrays["target"]] * (arrays["weight"] if is_weighted else 1)
    if not is_weighted:
        del arrays["weight"]
    theirs, ours = (started(lambda: SparseLinear(FEATURES, 3)) for _ in range(2))
    their_rule, our_rule = RULES[rule](theirs.parameters()), RULES[rule](ours.parameters())
    expected = by_autograd(
        theirs, WeightedLoss(nn.CrossEntropyLoss(), float(weight.mean())), their_rule, arrays, weight
    )
    loss: Any = nn.CrossEntropyLoss(weight=classes)
    update = ours.fused(WeightedLoss(loss, 7.0) if is_weighted else loss, our_rule)
    update.bind(ours, our_rule, arrays, {})
    assert update.run(Chunk(np.arange(SAMPLES), 0)).loss == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(everything(ours), everything(theirs), rtol=1e-5, atol=1e-5)


def test_a_batch_of_classes_that_weigh_nothing_changes_nothing() -> None:
    """A stream binds batch after batch, so that all samples bound at once may be of a class with weight 0."""
    arrays = {name: array for name, array in weighted_rows(classes=3).items() if name != "weight"}
    arrays["target"] = np.zeros(SAMPLES, np.int64)
    model = started(lambda: SparseLinear(FEATURES, 3))
    before = [param.detach().clone() for param in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    update = model.fused(nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 4.0])), optimizer)
    update.bind(model, optimizer, arrays, {})
    tally = update.run(Chunk(np.arange(SAMPLES), 0))
    assert (tally.loss, tally.applied, tally.not_finite) == (0.0, SAMPLES, 0)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("kind", MODELS)
def test_a_sample_of_weight_0_decays_nothing(kind: str, rule: type[torch.optim.Optimizer], classes: int) -> None:
    """It is as if it were not there."""
    if classes > 2 and kind != "linear":
        pytest.skip("one output")
    arrays, found = weighted_rows(classes), []
    arrays["weight"][::3] = 0
    inner = LogisticLoss() if classes == 2 else nn.CrossEntropyLoss()
    for rows in (np.arange(SAMPLES), np.flatnonzero(arrays["weight"])):
        model = started(MODELS[kind] if classes == 2 else lambda: SparseLinear(FEATURES, classes))
        optimizer = rule(model.parameters(), lr=0.05, weight_decay=0.3)
        update = model.fused(WeightedLoss(inner, 1.0), optimizer)
        assert not isinstance(update, str), update
        update.bind(model, optimizer, arrays, {})
        assert update.run(Chunk(rows, 0)).applied == len(rows)
        found.append(everything(model))
    assert all(map(torch.equal, *found))
