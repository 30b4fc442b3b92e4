"""Models whose features are asked for by any int64: bit for bit what the same kernel does with numbered rows, and what
autograd does; and an id has no row before its batch is learnt."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.errors import ModelError, UsageError
from hogwild.kernels import bpr, signatures
from hogwild.kernels.fused import Chunk
from hogwild.losses import BprLoss, HingeLoss, LogisticLoss
from hogwild.models import (
    FactorizationMachine,
    MatrixFactorization,
    NamedBprFactorization,
    NamedFactorization,
    NamedFactorizationMachine,
    NamedLinear,
    SparseLinear,
)
from hogwild.optimizers import FTRL

FACTORS = 5
LOSSES = (LogisticLoss(), HingeLoss(), nn.MSELoss(), nn.BCEWithLogitsLoss())
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=0.01),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "FTRL": lambda params: FTRL(params, lr=0.05, beta=0.1, l1=0.01),
}
ID = st.one_of(st.integers(-3, 3), st.integers(-(2**63) + 2, 2**63 - 1))
ROWS = st.lists(st.lists(ID, max_size=6), min_size=1, max_size=6)
Batch = tuple[tuple[Tensor, Tensor, Tensor], Tensor]


def batch_of(rows: list[list[int]], seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.tensor([one for row in rows for one in row], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])[:-1].tolist()])
    target = torch.randint(0, 2, (len(rows),), generator=draw).float()
    return (ids, offsets, torch.rand(len(ids), generator=draw) + 0.5), target


def learn(model: Any, loss: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> list[float]:
    """Train by the model's compiled update, as one worker does with the batches of a stream."""
    update, losses = model.fused(loss, optimizer), []
    assert not isinstance(update, str), update
    for inputs, target in batches:
        update.bind(model, optimizer, update.arrays_of(model, inputs, target), {})
        losses.append(update.run(Chunk(np.arange(len(target)), 0)).loss)
    return losses


def same(one: Any, other: Any) -> bool:
    """True for equal numbers, NaN of a diverged model included."""
    return np.array_equal(*(np.asarray(torch.as_tensor(each).detach()) for each in (one, other)), equal_nan=True)


def pair_of(kind: str, capacity: int) -> tuple[Any, Any]:
    """Return a named model and one of numbered rows that begins with the same values."""
    torch.manual_seed(3)
    named: Any = NamedLinear(capacity) if kind == "linear" else NamedFactorizationMachine(capacity, FACTORS)
    table = named.features.weight.detach()
    rows = len(table)  # the default row, too
    numbered: Any = SparseLinear(rows) if kind == "linear" else FactorizationMachine(rows, FACTORS)
    with torch.no_grad():
        numbered.weight.copy_(table[:, :1])
        if kind != "linear":
            numbered.factors.copy_(table[:, 1:])
    return named, numbered


@pytest.mark.filterwarnings("ignore:NamedEmbedding")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["linear", "machine"])
@given(st.lists(ROWS, min_size=1, max_size=5), st.sampled_from(LOSSES), st.integers(1, 40))
def test_rows_by_id_are_trained_as_the_same_rows_by_number(
    kind: str, rule: str, batches: list[list[list[int]]], loss: nn.Module, capacity: int
) -> None:
    """Also where the table is full: further ids share the first row."""
    named, numbered = pair_of(kind, capacity)
    given = [batch_of(rows, seed) for seed, rows in enumerate(batches)]
    optimizer, other = (RULES[rule](each.parameters()) for each in (named, numbered))
    losses = learn(named, loss, optimizer, given)
    by_number = [((named.features.rows_of(ids), *more), target) for (ids, *more), target in given]
    assert same(losses, learn(numbered, loss, other, by_number))  # type: ignore[arg-type]
    table = named.features.weight.detach()
    assert same(table[:, :1], numbered.weight) and same(named.bias, numbered.bias)
    assert kind == "linear" or same(table[:, 1:], numbered.factors)
    ids = {one for rows in batches for row in rows for one in row}
    assert named.features.taken == min(len(ids), capacity)
    for key in ("sum", "z") if rule == "FTRL" else ("sum",) if rule == "Adagrad" else ():
        sums = optimizer.state[named.features.weight][key]
        assert same(sums[:, :1], other.state[numbered.weight][key])
        assert kind == "linear" or same(sums[:, 1:], other.state[numbered.factors][key])


@pytest.mark.parametrize("kind", ["linear", "machine"])
def test_autograd_trains_them_as_the_kernel_does(kind: str) -> None:
    rows = [[one] for one in (7, -(2**62), 2**62, 7)] + [[1, 7, -5], []]
    given = [batch_of([row], seed) for seed, row in enumerate(rows)]
    (named, _), (other, _) = pair_of(kind, 10), pair_of(kind, 10)
    rules = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (named, other)]
    losses = learn(named, LogisticLoss(), rules[0], given)
    for (inputs, target), wanted in zip(given, losses, strict=True):
        rules[1].zero_grad()
        loss = LogisticLoss()(other(*inputs), target)
        loss.backward()
        rules[1].step()
        assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert torch.allclose(named.features.weight, other.features.weight, rtol=1e-5, atol=1e-7)
    assert torch.equal(named.features.keys, other.features.keys)
    together = batch_of(rows, 1)[0]
    assert torch.allclose(named.eval()(*together), other.eval()(*together), rtol=1e-5, atol=1e-7)


def test_an_id_has_no_row_before_its_batch_is_learnt() -> None:
    model = NamedFactorizationMachine(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update: Any = model.fused(LogisticLoss(), optimizer)
    inputs, target = batch_of([[5, 6], [6]], 1)
    update.bind(model, optimizer, update.arrays_of(model, inputs, target), {})
    update.run(Chunk(np.empty(0, np.int64), 0))
    model.eval()(*inputs)
    assert model.features.taken == 0
    update.run(Chunk(np.arange(1), 0))  # a long batch is trained in pieces
    assert model.features.taken == 2
    before = model.features.weight.detach().clone()
    update.run(Chunk(np.arange(1, 2), 0))
    row = int(model.features.rows_of(torch.tensor([6])))
    assert (model.features.weight != before).any(1).nonzero().tolist() == [[row]]


def test_ids_wait_for_their_row_as_often_as_asked() -> None:
    model = NamedLinear(10, min_count=2)
    given = [batch_of([[5]], 1), batch_of([[5]], 2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn(model, LogisticLoss(), optimizer, given[:1])
    default = model.features.rows_of(torch.tensor([9]))
    assert model.features.taken == 0 and model.features.weight[default] != 0
    learn(model, LogisticLoss(), optimizer, given[1:])
    assert model.features.taken == 1


def test_ids_of_32_bits_are_ids_too() -> None:
    model = NamedLinear(10)
    (ids, offsets, values), target = batch_of([[5, 6], [6]], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn(model, LogisticLoss(), optimizer, [((ids.int(), offsets.int(), values), target)])
    wide = model.eval()(ids, offsets, values)
    assert model.features.taken == 2 and torch.equal(model(ids.int(), offsets.int(), values), wide)


def test_numbered_data_and_empty_vectors_are_refused() -> None:
    for model, other in ((NamedLinear(3), "use SparseLinear"), (NamedFactorizationMachine(3), "use Factorization")):
        with pytest.raises(ModelError, match=other):
            model.on_data({"indices": np.zeros(1, np.int32)}, None)
    with pytest.raises(UsageError, match="dim must be a whole number >= 1, got 0"):
        NamedFactorizationMachine(3, factors=0)


def test_a_frozen_table_is_left_to_autograd() -> None:
    model = NamedLinear(3)
    model.features.weight.requires_grad_(False)
    assert model.fused(LogisticLoss(), torch.optim.SGD(model.parameters(), lr=0.1)) == "features.weight is frozen"


# ---- users and items


RATINGS = st.lists(st.lists(st.tuples(ID, ID, st.integers(1, 5)), min_size=1, max_size=12), min_size=1, max_size=4)


def ratings_of(rows: list[tuple[int, int, int]]) -> Any:
    user, item, rating = (torch.tensor(column) for column in zip(*rows, strict=True))
    return (user, item), rating.float()


def two_factorizations(users: int, items: int, l2: float = 0.05) -> tuple[NamedFactorization, MatrixFactorization]:
    """Return a named model and one of numbered rows, the default ones too, that begins with the same values."""
    torch.manual_seed(3)
    named = NamedFactorization(users, items, FACTORS, mean=2.5, l2=l2)
    numbered = MatrixFactorization(len(named.users.weight), len(named.items.weight), FACTORS, mean=2.5, l2=l2)
    for (own, bias), table in zip(tables_of(numbered), (named.users, named.items), strict=True):
        with torch.no_grad():
            table.weight[:, 0] = 0.1 * torch.randn(len(table.weight))
            own.copy_(table.weight[:, 1:])
            bias.copy_(table.weight[:, :1])
    return named, numbered


def tables_of(model: Any) -> list[tuple[Tensor, Tensor]]:
    return [(model.user.weight, model.user_bias.weight), (model.item.weight, model.item_bias.weight)]


@pytest.mark.filterwarnings("ignore:NamedEmbedding")
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
@given(RATINGS, st.integers(1, 20), st.integers(1, 20))
def test_users_and_items_by_id_are_trained_as_the_same_rows_by_number(
    rule: str, batches: list[list[tuple[int, int, int]]], users: int, items: int
) -> None:
    named, numbered = two_factorizations(users, items)
    rules = [RULES[rule](each.parameters()) for each in (named, numbered)]
    given = [*map(ratings_of, batches)]
    losses = learn(named, nn.MSELoss(), rules[0], given)
    rows = [((named.users.rows_of(user), named.items.rows_of(item)), rating) for (user, item), rating in given]
    assert losses == learn(numbered, nn.MSELoss(), rules[1], rows)  # type: ignore[arg-type]
    for (own, bias), table in zip(tables_of(numbered), (named.users, named.items), strict=True):
        assert torch.equal(table.weight[:, 1:], own) and torch.equal(table.weight[:, :1], bias)
        if rule == "Adagrad":
            sums = rules[0].state[table.weight]["sum"]
            assert torch.equal(sums[:, 1:], rules[1].state[own]["sum"])
            assert torch.equal(sums[:, :1], rules[1].state[bias]["sum"])


def test_autograd_rates_as_the_numbered_model_does() -> None:
    named, numbered = two_factorizations(9, 9)
    (ids, rating) = ratings_of([(7, -3, 5), (2**62, -3, 1), (7, 11, 2)])
    loss = nn.MSELoss()(named(*ids), rating)
    loss.backward()
    rows = named.users.rows_of(ids[0]), named.items.rows_of(ids[1])
    other = nn.MSELoss()(numbered(*rows), rating)
    other.backward()
    assert loss.item() == pytest.approx(other.item())
    for (own, bias), table in zip(tables_of(numbered), (named.users, named.items), strict=True):
        gradients = [one.grad.to_dense() for one in (bias, own)]  # type: ignore[union-attr]
        assert torch.allclose(table.weight.grad.to_dense(), torch.cat(gradients, 1), atol=1e-6)  # type: ignore[union-attr]


def test_those_with_a_row_make_a_model_of_numbers() -> None:
    named, _ = two_factorizations(9, 9)
    with pytest.raises(UsageError, match="not met any"):
        named.numbered()
    (user, item), rating = ratings_of([(7, -3, 5), (2**62, -3, 1), (7, 11, 2)])
    learn(named, nn.MSELoss(), torch.optim.SGD(named.parameters(), lr=0.1), [((user, item), rating)])  # type: ignore[list-item]
    model, users, items = named.numbered()
    assert sorted(users) == [7, 2**62] and sorted(items) == [-3, 11]
    rows = [torch.tensor([*map(ids.index, given.tolist())]) for ids, given in ((users, user), (items, item))]
    assert torch.allclose(model(*rows), named.eval()(user, item))
    assert float(model.mean) == 2.5 and model.l2 == 0.05


def test_wide_rows_are_left_to_autograd() -> None:
    model = NamedFactorization(3, 3, 129)
    reason = model.fused(nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert reason == "its fused update is for 128 factors at most, not for 129"
    with pytest.raises(UsageError, match="l2 must not be negative"):
        NamedFactorization(3, 3, l2=-1.0)


# ---- events


@pytest.mark.filterwarnings("ignore:NamedEmbedding")
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
@given(RATINGS, st.integers(1, 20), st.integers(1, 20))
def test_pairs_by_id_are_trained_as_the_same_rows_by_number(
    rule: str, batches: list[list[tuple[int, int, int]]], users: int, items: int
) -> None:
    torch.manual_seed(3)
    named, loss = NamedBprFactorization(users, items, FACTORS, l2=0.05), BprLoss(alpha=0.5)
    optimizer = RULES[rule](named.parameters())
    decay = optimizer.param_groups[0]["weight_decay"] + 0.05
    numbers = np.array([(optimizer.param_groups[0]["lr"], decay, 1e-10 if rule == "Adagrad" else 1.0)] * 3, np.float32)
    for (user, item), rating in map(ratings_of, batches):
        tables = []
        for weight in (named.users.weight, named.items.weight):
            sums = optimizer.state[weight]["sum"] if rule == "Adagrad" else weight
            tables.append([one.detach().numpy().copy() for one in (weight, sums)])
        (users_now, user_sums), (items_now, item_sums) = tables
        parts = [
            np.ascontiguousarray(one) for one in (items_now[:, 1:], item_sums[:, 1:], items_now[:, 0], item_sums[:, 0])
        ]
        (lost,) = learn(named, loss, optimizer, [((user, item), rating)])  # type: ignore[list-item]
        rows = [
            table.rows_of(ids).numpy().astype(np.int32) for table, ids in ((named.users, user), (named.items, item))
        ]
        drawable = named.drawable(len(rating), np.random.default_rng(0))
        met = named.items.rows_of(named.items.named()[0]).tolist() or [0]
        assert sorted({*drawable.tolist()}) == sorted(met), "all of so few"
        owned = np.zeros(len(users_now) + 1, np.int64), np.zeros(0, np.int32), drawable
        views = (users_now, user_sums, user_sums), (parts[0], parts[1], parts[1]), (parts[2], parts[3], parts[3])
        choice = np.uint64(0), 0, np.float32(0.5)
        samples, kind = (*rows, rating.numpy()), signatures.RULES[rule]
        expected, _, _ = bpr.plain(np.arange(len(rating)), samples, owned, choice, views, (), kind, numbers)
        # Columns of one table are another loop than tables by themselves: sums are added up in another order.
        assert same(lost, expected) or np.isclose(lost, expected, rtol=1e-5)
        items_then = np.column_stack([parts[2], parts[0]])
        for table, wanted in ((named.users, users_now), (named.items, items_then)):
            assert np.allclose(table.weight.detach().numpy(), wanted, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_margins_are_those_of_the_numbered_model_against_items_that_were_met() -> None:
    named = NamedBprFactorization(9, 9, 3)
    assert named.drawable(5, None).tolist() == [0], "nobody has a row"
    with pytest.raises(UsageError, match="not met any"):
        named.numbered()
    user, item = torch.tensor([7, 2**62, 7, 7]), torch.tensor([-3, -3, 11, 5])
    BprLoss()(named(user, item), torch.ones(4)).backward()
    gradient = named.items.weight.grad
    assert gradient is not None and gradient.is_sparse and named.items.taken == 3
    model, users, items = named.numbered()
    margins = named.eval()(user, item)
    assert torch.equal(margins, named(user, item)), "an evaluation draws the same again"
    own = [torch.tensor([*map(ids.index, given.tolist())]) for ids, given in ((users, user), (items, item))]
    scores = model.scores(own[0])
    others = scores.gather(1, own[1][:, None]) - margins[:, None]
    assert torch.isclose(scores, others, atol=1e-6).any(1).all()


def test_one_item_makes_no_recommender() -> None:
    named = NamedBprFactorization(9, 9, 3)
    named(torch.tensor([1]), torch.tensor([1]))
    with pytest.raises(UsageError, match="not met two items"):
        named.numbered()
    reason = named.fused(nn.MSELoss(), torch.optim.SGD(named.parameters(), lr=0.1))
    assert reason == "its fused update is for hogwild.losses.BprLoss, not for MSELoss"
