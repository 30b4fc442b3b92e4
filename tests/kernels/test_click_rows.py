"""The field-aware machine and DeepFM: what their forward computes, and the compiled update against autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.models import DeepFm, FieldFactorizationMachine
from hogwild.optimizers import FTRL

FIELDS, VALUES, FACTORS, SAMPLES = 4, 5, 3, 24
FEATURES = FIELDS * VALUES
LOSSES: dict[str, nn.Module] = {
    "logistic": LogisticLoss(),
    "weighted": LogisticLoss(positive_weight=3.0),
    "hinge": HingeLoss(),
    "squared": nn.MSELoss(),
}
RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.02),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "FTRL": lambda params: FTRL(params, lr=0.05, beta=0.1, l1=0.1, l2=0.1),
}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad, of sparse gradients


def rows_and_targets(samples: int = SAMPLES, seed: int = 0) -> dict[str, np.ndarray]:
    """CSR arrays: a feature of each field, values that are not 1; targets -1 and +1, decided by two fields."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, VALUES, (samples, FIELDS))
    return {
        "indptr": np.arange(samples + 1, dtype=np.int64) * FIELDS,
        "indices": (chosen + np.arange(FIELDS) * VALUES).reshape(-1).astype(np.int32),
        "values": rng.normal(1.0, 0.3, samples * FIELDS).astype(np.float32),
        "target": np.where((chosen[:, 0] + chosen[:, 1]) % 2 == 0, 1.0, -1.0).astype(np.float32),
    }


def started(kind: Any = FieldFactorizationMachine, **more: Any) -> Any:
    torch.manual_seed(3)
    model = kind(FEATURES, FIELDS, FACTORS, **more)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(0.0, 0.3)
    return model


def inputs_of(arrays: dict[str, np.ndarray], begin: int, end: int) -> tuple[Tensor, ...]:
    part = slice(begin * FIELDS, end * FIELDS)
    offsets = np.arange(0, (end - begin) * FIELDS, FIELDS, dtype=np.int32)
    return tuple(map(torch.from_numpy, (arrays["indices"][part], offsets, arrays["values"][part])))


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [param.detach() for param in model.parameters()]
    return found + [state[key] for state in optimizer.state.values() for key in ("sum", "z") if key in state]


def test_the_forward_is_the_papers_sum_over_pairs_of_fields() -> None:
    model, arrays = started(), rows_and_targets()
    found = model(*inputs_of(arrays, 0, SAMPLES))
    vectors = model.factors.detach().reshape(FEATURES, FIELDS, FACTORS)
    for row in range(SAMPLES):
        features, _, values = inputs_of(arrays, row, row + 1)
        expected = model.bias[0] + (model.weight[features.long(), 0] * values).sum()
        for a in range(FIELDS):
            for b in range(a):
                one, two = int(features[a]), int(features[b])
                expected = expected + values[a] * values[b] * (vectors[one, b] @ vectors[two, a])
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)


def test_deep_fm_is_a_factorisation_machine_plus_a_network_over_its_vectors() -> None:
    model, arrays = started(DeepFm, hidden=(6,)), rows_and_targets()
    found = model(*inputs_of(arrays, 0, SAMPLES))
    for row in range(SAMPLES):
        features, _, values = inputs_of(arrays, row, row + 1)
        vectors = model.factors[features.long()] * values[:, None]
        expected = model.bias[0] + (model.weight[features.long(), 0] * values).sum()
        for a in range(FIELDS):
            for b in range(a):
                expected = expected + vectors[a] @ vectors[b]
        expected = expected + model.layers(vectors.reshape(1, -1))[0, 0]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)
    found.sum().backward()
    assert (
        model.factors.grad.is_sparse
        and model.weight.grad.is_sparse
        and not model.layers.layers[0].weight.grad.is_sparse
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LOSSES)
def test_the_kernel_goes_where_autograd_goes_sample_by_sample(name: str, rule: str) -> None:
    arrays, loss = rows_and_targets(), LOSSES[name]
    theirs, ours = started(), started()
    their_rule, our_rule = (RULES[rule](model.parameters()) for model in (theirs, ours))
    rows, expected = np.random.default_rng(4).permutation(SAMPLES), 0.0
    for row in rows:
        their_rule.zero_grad()
        value = loss(theirs(*inputs_of(arrays, row, row + 1)), torch.from_numpy(arrays["target"][row : row + 1]))
        value.backward()
        their_rule.step()
        expected += value.item()
    update = ours.fused(loss, our_rule)
    update.bind(ours, our_rule, arrays, {})
    tallies = [update.run(Chunk(part, 0)) for part in np.array_split(rows, 3)]
    assert sum(tally.applied for tally in tallies) == SAMPLES
    assert sum(tally.loss for tally in tallies) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(everything(ours, our_rule), everything(theirs, their_rule), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_is_counted_and_not_applied_and_no_rows_change_nothing(rule: str) -> None:
    arrays, model = rows_and_targets(), started()
    arrays["values"][[4 * FIELDS, 9 * FIELDS + 1]] = np.nan, np.inf
    optimizer = RULES[rule](model.parameters())
    update = model.fused(LogisticLoss(), optimizer)
    update.bind(model, optimizer, arrays, {})
    before = [each.clone() for each in everything(model, optimizer)]
    assert update.run(Chunk(np.empty(0, np.int64), 0)).applied == 0
    tally = update.run(Chunk(np.array([4, 9]), 0))
    assert (tally.applied, tally.not_finite, tally.loss) == (0, 2, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(everything(model, optimizer), before, strict=True))


def test_weight_decay_is_of_the_numbers_a_row_uses() -> None:
    arrays, ours = rows_and_targets(), started()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=0.3)
    update = ours.fused(nn.MSELoss(), optimizer)
    update.bind(ours, optimizer, arrays, {})
    update.run(Chunk(np.array([0]), 0))
    theirs = started(sparse=False)
    nn.MSELoss()(theirs(*inputs_of(arrays, 0, 1)), torch.from_numpy(arrays["target"][:1])).backward()
    for name, param in theirs.named_parameters():
        gradient = param.grad if name == "bias" else param.grad + 0.3 * param * (param.grad != 0)
        gradient = gradient + 0.3 * param if name == "bias" else gradient
        torch.testing.assert_close(ours.get_parameter(name), param - 0.1 * gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [FieldFactorizationMachine, DeepFm])
def test_rows_without_a_feature_of_each_field_are_refused(kind: Any) -> None:
    model, arrays = started(kind), rows_and_targets()
    model.see(arrays, None)
    short = arrays | {"indptr": np.append(arrays["indptr"][:-1], arrays["indptr"][-1] - 1)}
    with pytest.raises(ModelError, match=r"one feature of each of 4 fields .* rows with 3 to 4"):
        model.see(arrays, short)
