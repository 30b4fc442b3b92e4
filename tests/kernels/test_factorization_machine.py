"""The compiled factorisation machine against autograd, and what its forward computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

from hogwild.kernels import factorization_machine, steps
from hogwild.kernels.fused import Chunk
from hogwild.kernels.hot_rows import HotRows
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.models.sparse_linear import FactorizationMachine, FactorizationMachineUpdate
from hogwild.optimizers import FTRL
from tests.helpers.reverted import reverted

FEATURES, FACTORS, SAMPLES = 20, 5, 24
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
    """CSR arrays, the third row empty; targets -1 and +1, decided by pairs of features."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 8, samples)
    lengths[2] = 0
    rows = [rng.choice(FEATURES, n, replace=False) for n in lengths]
    even = np.array([np.sum(row % 2 == 0) % 2 for row in rows])
    return {
        "indptr": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "indices": np.concatenate(rows).astype(np.int32),
        "values": rng.normal(1.0, 0.3, size=lengths.sum()).astype(np.float32),
        "target": (2 * even - 1).astype(np.float32),
    }


def started(sparse: bool = True) -> FactorizationMachine:
    model = FactorizationMachine(FEATURES, FACTORS, sparse=sparse)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
    return model


def inputs_of(arrays: dict[str, np.ndarray], begin: int, end: int) -> tuple[Tensor, ...]:
    first, last = arrays["indptr"][begin], arrays["indptr"][end]
    offsets = (arrays["indptr"][begin:end] - first).astype(np.int32)
    return tuple(map(torch.from_numpy, (arrays["indices"][first:last], offsets, arrays["values"][first:last])))


def by_autograd(
    model: FactorizationMachine, loss: nn.Module, optimizer: torch.optim.Optimizer, arrays: Any, rows: Any
) -> float:
    total = 0.0
    for row in rows:
        optimizer.zero_grad()
        value = loss(model(*inputs_of(arrays, row, row + 1)), torch.from_numpy(arrays["target"][row : row + 1]))
        value.backward()
        optimizer.step()
        total += value.item()
    return total


def bound(
    model: FactorizationMachine, loss: nn.Module, optimizer: torch.optim.Optimizer, arrays: Any, hot: Any = None
) -> FactorizationMachineUpdate:
    update = model.fused(loss, optimizer)
    assert isinstance(update, FactorizationMachineUpdate), update
    update.bind(model, optimizer, arrays, hot or {})
    return update


def copies(model: FactorizationMachine, optimizer: torch.optim.Optimizer, rows: list[int]) -> dict[str, HotRows]:
    found = {}
    for name in ("weight", "factors"):
        param = model.get_parameter(name)
        found[name] = HotRows(param.detach().numpy(), np.array(rows, np.int32))
        if isinstance(optimizer, torch.optim.Adagrad):
            found[f"{name}.sum"] = HotRows(optimizer.state[param]["sum"].numpy(), np.array(rows, np.int32))
    return found


def everything(model: FactorizationMachine, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [param.detach() for param in model.parameters()]
    return found + [state[key] for state in optimizer.state.values() for key in ("sum", "z") if key in state]


def test_the_forward_sums_over_all_pairs() -> None:
    model, arrays = started(), rows_and_targets()
    found = model(*inputs_of(arrays, 0, SAMPLES))
    for row in range(SAMPLES):
        indices, _, values = inputs_of(arrays, row, row + 1)
        expected = model.bias[0] + sum((model.weight[j, 0] * x for j, x in zip(indices, values, strict=True)), 0.0)
        for a in range(len(indices)):
            for b in range(a):
                expected = expected + values[a] * values[b] * model.factors[indices[a]] @ model.factors[indices[b]]
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LOSSES)
def test_the_kernel_goes_where_autograd_goes_sample_by_sample(name: str, rule: str) -> None:
    """Whichever features are private, however the rows are cut."""
    arrays, loss = rows_and_targets(), LOSSES[name]
    theirs = started()
    their_rule = RULES[rule](theirs.parameters())
    rows = np.random.default_rng(4).permutation(SAMPLES)
    expected = by_autograd(theirs, loss, their_rule, arrays, rows)
    for hot in ([], [3, 0, 11], [*range(FEATURES)]):
        ours = started()
        our_rule = RULES[rule](ours.parameters())
        private = copies(ours, our_rule, hot) if hot and rule != "FTRL" else {}
        update = bound(ours, loss, our_rule, arrays, private)
        tallies = []
        for part in np.array_split(rows, 3):
            tallies.append(update.run(Chunk(part, 0)))
            for each in private.values():
                each.flush()
        assert sum(tally.applied for tally in tallies) == SAMPLES
        assert sum(tally.loss for tally in tallies) == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(everything(ours, our_rule), everything(theirs, their_rule), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_is_counted_and_not_applied_and_no_rows_change_nothing(rule: str) -> None:
    arrays = rows_and_targets()
    arrays["values"][[arrays["indptr"][4], arrays["indptr"][9]]] = np.nan, np.inf
    model = started()
    optimizer = RULES[rule](model.parameters())
    update = bound(model, LogisticLoss(), optimizer, arrays)
    before = [each.clone() for each in everything(model, optimizer)]
    assert update.run(Chunk(np.empty(0, np.int64), 0)).applied == 0
    tally = update.run(Chunk(np.array([4, 9]), 0))
    assert (tally.applied, tally.not_finite, tally.loss) == (0, 2, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(everything(model, optimizer), before, strict=True))


def test_weight_decay_is_of_the_features_a_row_has() -> None:
    arrays = rows_and_targets()
    theirs, ours = started(sparse=False), started()  # torch decays no sparse gradient
    rules = [torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.3) for model in (theirs, ours)]
    by_autograd(theirs, nn.MSELoss(), rules[0], arrays, [0])
    bound(ours, nn.MSELoss(), rules[1], arrays).run(Chunk(np.array([0]), 0))
    touched = torch.from_numpy(arrays["indices"][: arrays["indptr"][1]]).long()
    untouched = sorted({*range(FEATURES)} - set(touched.tolist()))
    for name in ("weight", "factors"):
        mine = ours.get_parameter(name)
        torch.testing.assert_close(mine[touched], theirs.get_parameter(name)[touched], rtol=1e-5, atol=1e-6)
        assert torch.equal(mine[untouched], started().get_parameter(name)[untouched])


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
    model = started()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    update = bound(model, LogisticLoss(), optimizer, arrays)
    for epoch in range(10):
        update.run(Chunk(np.random.default_rng(epoch).permutation(400), 0))
    logits = model(*inputs_of(arrays, 0, 400))
    assert bool(((logits > 0) == (torch.from_numpy(arrays["target"]) > 0)).all())


def test_adagrads_step_is_bounded_by_its_rate_whatever_becomes_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel as plain Python, its sums reverted between the write and whatever would read them next."""
    for name in ("add_feature", "learn", "move"):
        monkeypatch.setattr(factorization_machine, name, getattr(factorization_machine, name).py_func)
    monkeypatch.setattr(factorization_machine, "ask_ahead", lambda *row: None)  # has no plain form: nothing is computed
    arrays, before, after = rows_and_targets(), started(), started()
    weight, factors, bias = (after.get_parameter(name).detach().numpy() for name in ("weight", "factors", "bias"))
    numbers = (np.float32(0.1), np.float32(0.0), np.float32(1e-10))
    sums, wide = reverted((FEATURES, 1)), reverted(factors.shape)
    factorization_machine.factorization_machine.py_func(
        np.array([5]), arrays["indptr"].view(np.uint64), arrays["indices"].view(np.uint32), arrays["values"],
        arrays["target"], np.zeros(0, np.float32), 0, weight, sums, weight, factors, wide, factors,
        bias, reverted(1), np.zeros(1, np.float32), weight, sums, np.zeros(0, np.uint32), factors[:0], wide[:0],
        np.zeros(FACTORS, np.float32), (0,) * steps.ADAGRAD, numbers, numbers, numbers,
    )  # fmt: skip
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert 0 < (new - old).abs().max().item() <= 0.1 * 1.0001


def test_autograds_side_is_differentiable() -> None:
    arrays, model = rows_and_targets(8), started(sparse=False).double()
    indices, offsets, values = inputs_of(arrays, 0, 8)

    def value(*params: Tensor) -> Tensor:
        given = dict(zip(("bias", "weight", "factors"), params, strict=True))
        return LogisticLoss()(
            torch.func.functional_call(model, given, (indices, offsets, values.double())),
            torch.from_numpy(arrays["target"]),
        )

    assert torch.autograd.gradcheck(value, [param.detach().requires_grad_() for param in model.parameters()])


def test_what_has_no_kernel_says_why_and_hot_rows_are_hot_everywhere() -> None:
    model, arrays = started(), rows_and_targets()
    assert "CrossEntropyLoss" in str(model.fused(nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters())))
    assert "momentum" in str(model.fused(nn.MSELoss(), torch.optim.SGD(model.parameters(), momentum=0.9)))
    optimizer = torch.optim.Adagrad(model.parameters())
    private = copies(model, optimizer, [1, 2])
    for missing in private:
        with pytest.raises(ValueError, match=r"hot rows|same ones"):
            bound(model, nn.MSELoss(), optimizer, arrays, {name: private[name] for name in private if name != missing})
