"""Matrix factorisation: kernels against autograd, the race, hot rows, what is drawn."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

from hogwild.errors import ModelError
from hogwild.kernels.fused import Chunk, GridPlace, Swept, Tally
from hogwild.kernels.hot_rows import HotRows
from hogwild.losses import BprLoss, WarpLoss
from hogwild.models import BprFactorization, MatrixFactorization, WarpFactorization
from hogwild.optimizers import RowWiseAdagrad

pytest.importorskip("numba")
# torch's own Adagrad says so of the sparse tensors that it makes, once per process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

USERS, ITEMS, FACTORS = 12, 9, 5
RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.05),
    "adagrad": lambda params: Adagrad(params, lr=0.05),
    "rows": lambda params: RowWiseAdagrad(params, lr=0.05),
}


def ratings(seed: int = 0, density: float = 0.6) -> dict[str, np.ndarray]:
    """Sorted by user and item, of rank 2."""
    rng = np.random.default_rng(seed)
    user, item = (part.astype(np.int32) for part in np.nonzero(rng.random((USERS, ITEMS)) < density))
    left, right = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    rating = (3.0 + (left[user] * right[item]).sum(1)).astype(np.float32)
    return {"user": user, "item": item, "rating": rating}


def explicit(factors: int = FACTORS, **options: Any) -> MatrixFactorization:
    torch.manual_seed(1)
    model = MatrixFactorization(USERS, ITEMS, factors, **options)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(std=0.4)  # biases, too
    return model


def implicit(kind: type[BprFactorization] = BprFactorization, **options: Any) -> BprFactorization:
    torch.manual_seed(1)
    model = kind(USERS, ITEMS, FACTORS, **options)
    with torch.no_grad():
        model.item_bias.weight.normal_(std=0.4)
    return model


def loss_of(model: Any, alpha: float = 0.0) -> Any:
    return model.loss(alpha) if isinstance(model, BprFactorization) else nn.MSELoss()


def bound(
    model: Any,
    optimizer: torch.optim.Optimizer,
    data: dict[str, np.ndarray],
    hot: dict[str, HotRows] | None = None,
    alpha: float = 0.0,
) -> Any:
    update = model.fused(loss_of(model, alpha), optimizer)
    assert not isinstance(update, str), update
    update.bind(model, optimizer, data, hot or {})
    return update


def rows(*places: int) -> np.ndarray:
    return np.array(places, np.int64)


def autograd_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, np.ndarray], at: int, alpha: float = 0.0
) -> float:
    user, item, rating = (torch.from_numpy(data[name][at : at + 1]) for name in ("user", "item", "rating"))
    loss: Tensor = loss_of(model, alpha)(model(user, item), rating)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def same(left: nn.Module, right: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, mine), theirs in zip(left.named_parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(
            mine, theirs, atol=tolerance, rtol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


# ---- kernels and autograd -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"l2": 0.3}, {"bias": False, "l2": 0.1}], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_rating_moves_the_rows_as_autograd_does(rule: str, options: dict[str, Any]) -> None:
    model, data = explicit(**options), ratings()
    twin = copy.deepcopy(model)
    optimizer, other = RULES[rule](model.parameters()), RULES[rule](twin.parameters())
    update = bound(model, optimizer, data)
    for at in (3, 4, 3):  # the third finds sums of the first
        tally = update.run(Chunk(rows(at), seed=0))
        assert tally == Tally(pytest.approx(autograd_step(twin, other, data, at), rel=1e-5), 1)
        same(model, twin)


class Told:
    """Draws what it is told."""

    others: tuple[int, ...] = ()

    def _draw(self, user: Tensor, item: Tensor, number: int) -> Tensor:
        return torch.full(item.shape, self.others[number])


class ToldBpr(Told, BprFactorization): ...


class ToldWarp(Told, WarpFactorization): ...


NAMES = {
    "user_features": ["young", "old"],
    "features_of_users": ["0 1 0.5", "3 0 1.0", "3 1 -2.0", "4 0 1.0"],
    "item_features": ["slow", "loud", "new"],
    # Items have common features, with equal and with other weights; some have none.
    "features_of_items": [*(f"{item} 0 1.0" for item in range(6)), "1 1 0.5", "2 1 2.0", "3 2 -1.0", "8 2 0.3"],
}


def hybrid(kind: type[BprFactorization], **options: Any) -> BprFactorization:
    torch.manual_seed(1)
    model = kind(USERS, ITEMS, FACTORS, user_features=2, item_features=3, **options)
    model.on_names(
        {key: sorted(value, key=lambda e: e.split()[:2]) if "of" in key else value for key, value in NAMES.items()}
    )
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(std=0.6)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("make", [implicit, hybrid])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@pytest.mark.parametrize("kind", [ToldBpr, ToldWarp])
def test_a_pair_moves_the_rows_and_those_of_its_features_as_autograd_does(
    kind: Any, rule: str, alpha: float, l2: float, make: Callable[..., Any]
) -> None:
    """Nearly all of WARP's margins are above 1, so that several items are drawn; their number tells the weight."""
    data, found = ratings(density=0.4), set()
    data["rating"][20] = -3.0  # its weight is 1
    model, twin = make(kind, l2=l2), make(kind, l2=l2)
    if kind is ToldWarp:
        twin.on_data(data, None)  # counts the other items of a user
        with torch.no_grad():
            model.item_bias.weight.normal_(std=3.0)
            twin.item_bias.weight.copy_(model.item_bias.weight)
    optimizer, other = RULES[rule](model.parameters()), RULES[rule](twin.parameters())
    update = bound(model, optimizer, data, alpha=alpha)
    for at in range(len(data["user"])):
        twin.others = kernels_draws(data, at, at, max(1, twin.tries))
        if kind is ToldWarp:
            user, item = (torch.from_numpy(data[name][at : at + 1]) for name in ("user", "item"))
            found.add(round(twin.violating(user, item)[1].item(), 3))
        tally = update.run(Chunk(rows(at), seed=at))
        assert tally == Tally(pytest.approx(autograd_step(twin, other, data, at, alpha), rel=1e-4), 1)
        same(model, twin)
    assert kind is ToldBpr or (0.0 in found and len(found) > 3), "several ranks were met"


def kernels_draws(data: dict[str, np.ndarray], at: int, seed: int, tries: int) -> tuple[int, ...]:
    """Return what the kernel draws for a sample: Python's own big numbers, and splitmix64 as it is published."""
    step, most = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mixed(state: int) -> int:
        z = state & most
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & most
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & most
        return z ^ (z >> 31)

    had = set(data["item"][data["user"] == data["user"][at]].tolist())
    state, found = mixed(seed ^ (at * step)), []
    for number in range(tries):
        draws = (mixed(state + (number * 16 + k + 1) * step) for k in range(16))
        found.append(next(item for bits in draws if (item := ((bits >> 32) * ITEMS) >> 32) not in had))
    return tuple(found)


def test_the_gradients_of_forward_are_right_to_the_last_digit_of_float64() -> None:
    user, item = torch.tensor([0, 3, 3]), torch.tensor([1, 1, 2])
    for model in (explicit(sparse=False).double(), implicit(sparse=False).double().eval()):
        names, values = zip(*model.named_parameters(), strict=True)
        given = [value.detach().clone().requires_grad_() for value in values]

        def output(*params: Tensor, model: nn.Module = model, names: Any = names) -> Any:
            return torch.func.functional_call(model, dict(zip(names, params, strict=True)), (user, item))

        assert torch.autograd.gradcheck(output, given)


def test_l2_is_the_gradient_of_the_penalised_loss_once_per_rating() -> None:
    user, item, rating = torch.tensor([0, 3, 3]), torch.tensor([1, 1, 2]), torch.tensor([3.0, 1.0, 2.0])
    model, plain = explicit(l2=0.2, sparse=False), explicit(sparse=False)
    nn.functional.mse_loss(model(user, item), rating).backward()  # type: ignore[no-untyped-call]
    looked_up = [plain.user(user), plain.item(item), plain.user_bias(user), plain.item_bias(item)]  # type: ignore[misc]
    penalty = 0.2 / 2 * sum(part.square().sum() for part in looked_up) / len(user)
    (nn.functional.mse_loss(plain(user, item), rating) + penalty).backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("rule", RULES)
def test_the_solution_is_that_of_autograd_rating_by_rating(rule: str) -> None:
    """Bound: 1e-3 in every number after four epochs."""
    data = ratings()
    model, twin = (MatrixFactorization(USERS, ITEMS, 2, l2=0.0) for _ in range(2))
    for one in (model, twin):
        one.on_data(data, None)
    twin.load_state_dict(model.state_dict())
    optimizer, other = RULES[rule](model.parameters()), RULES[rule](twin.parameters())
    update = bound(model, optimizer, data)
    rng = np.random.default_rng(5)
    before = rmse(model, data)
    for _ in range(4):
        order = rng.permutation(len(data["user"]))
        update.run(Chunk(order, seed=0))
        for at in order.tolist():
            autograd_step(twin, other, data, at)
    assert rmse(model, data) < before - 0.1
    same(model, twin, 1e-3)


def rmse(model: nn.Module, data: dict[str, np.ndarray]) -> float:
    with torch.no_grad():
        found = model(torch.from_numpy(data["user"]), torch.from_numpy(data["item"])).numpy()
    return float(np.sqrt(np.mean((found - data["rating"]) ** 2)))


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def alone() -> GridPlace:
    """Return the place of the first of two workers; the words lie in a table, as those of a scoreboard."""
    return GridPlace(np.zeros((2, 3), np.int64)[:, 1], 0)


def sweep(
    update: Any, borders: list[int], *, rates: Any = None, columns: Any = None, place: Any = None, insist: bool = False
) -> Swept:
    batches = len(borders) - 1
    factors = np.ones(batches, np.float32) if rates is None else np.array(rates, np.float32)
    columns = np.zeros(batches, np.int64) if columns is None else np.array(columns)
    return update.sweep(np.array(borders), factors, columns, place or alone(), insist)  # type: ignore[no-any-return]


def mixed_ratings() -> tuple[dict[str, np.ndarray], list[int]]:
    """Samples of which neighbours are sometimes of one row, some not finite, and borders of batches: the third has no
    other samples."""
    data = ratings()
    order = np.random.default_rng(3).permutation(len(data["user"]))
    data = {name: array[order] for name, array in data.items()}
    data["rating"][[2, 9, 10, 11, 30]] = np.nan, np.inf, -np.inf, np.nan, np.inf
    return data, [0, 1, 9, 12, 33, 40, len(order)]


@pytest.mark.slow
@pytest.mark.parametrize("factors", [1, 3, 16, 20, 32, 50, 128, 200])
@pytest.mark.parametrize("options", [{"l2": 0.1}, {"bias": False}], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_sweep_is_its_batches_one_by_one_at_their_rates_and_autograd_rating_by_rating(
    rule: str, options: dict[str, Any], factors: int
) -> None:
    (data, borders), rates = mixed_ratings(), [1.0, 0.5, 2.0, 0.25, 0.0, 1.5]
    models = [explicit(factors, **options) for _ in range(3)]
    optimizers = [RULES[rule](model.parameters()) for model in models]
    swept = sweep(bound(models[0], optimizers[0], data), borders, rates=rates)
    update, tallies, losses = bound(models[1], optimizers[1], data), [], []
    for first, last, rate in zip(borders, borders[1:], rates, strict=False):
        tallies.append(update.run(Chunk(np.arange(first, last), seed=0, rate=rate)))
        optimizers[2].param_groups[0]["lr"] = 0.05 * rate
        finite = [at for at in range(first, last) if np.isfinite(data["rating"][at])]
        losses += [autograd_step(models[2], optimizers[2], data, at) for at in finite]
    assert [tally.not_finite for tally in tallies] == [0, 1, 3, 1, 0, 0]
    means = [tally.loss / tally.applied for tally in tallies if tally.applied]
    expected = Swept(sum(means), 5, sum(tally.loss for tally in tallies), sum(tally.applied for tally in tallies), 6)
    assert swept == pytest.approx(expected, rel=1e-5)
    assert swept.loss == pytest.approx(sum(losses), rel=1e-4)
    same(models[0], models[1], 1e-6)
    same(models[0], models[2], 1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_a_sweep_stops_before_a_column_of_another_worker_and_goes_on_as_if_it_had_not(rule: str) -> None:
    (data, borders), columns, place = mixed_ratings(), [4, 4, 7, 7, 2, 2], alone()
    model, twin = explicit(), explicit()
    update = bound(model, RULES[rule](model.parameters()), data)
    place.words[1] = 7 + 1
    first = sweep(update, borders, columns=columns, place=place)
    assert (first.done, first.batches, place.words[0]) == (2, 2, 0)
    assert sweep(update, borders[2:], columns=columns[2:], place=place) == Swept(0.0, 0, 0.0, 0, 0)
    place.words[1] = 2 + 1
    second = sweep(update, borders[2:], columns=columns[2:], place=place)
    assert (second.done, second.batches, place.words[0]) == (2, 1, 0)
    third = sweep(update, borders[4:], columns=columns[4:], place=place, insist=True)
    assert place.words[0] == 2 + 1
    whole = sweep(bound(twin, RULES[rule](twin.parameters()), data), borders, columns=columns)
    assert np.sum([first, second, third], axis=0) == pytest.approx(np.array(whole))
    same(model, twin, 0)


# ---- what a chunk does ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_rating_that_is_not_finite_is_counted_and_changes_nothing(rule: str) -> None:
    data, model = ratings(), explicit(l2=0.1)
    data["rating"][4], data["rating"][5] = np.nan, np.inf
    optimizer = RULES[rule](model.parameters())
    before, sums = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    update = bound(model, optimizer, data)
    assert update.run(Chunk(rows(4, 5), seed=0)) == Tally(0.0, 0, 2)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], sums, rtol=0, atol=0)
    assert update.run(Chunk(rows(3, 4, 6), seed=0)).applied == 2
    assert all(torch.isfinite(param).all() for param in model.parameters())


def test_an_empty_chunk_changes_nothing() -> None:
    for model in (explicit(), implicit()):
        before = copy.deepcopy(model.state_dict())
        assert bound(model, SGD(model.parameters(), lr=0.1), ratings()).run(Chunk(rows(), seed=0)) == Tally(0.0, 0)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "made", [explicit, implicit, partial(implicit, WarpFactorization)], ids=["ratings", "BPR", "WARP"]
)
def test_a_batch_that_takes_long_and_is_computed_in_pieces_gives_the_same_parameters(made: Any) -> None:
    data, whole, cut = ratings(), made(), made()
    order = np.random.default_rng(2).permutation(len(data["user"]))
    bound(whole, SGD(whole.parameters(), lr=0.1), data).run(Chunk(order, seed=3))
    update = bound(cut, SGD(cut.parameters(), lr=0.1), data)
    for piece in np.array_split(order, 5):
        update.run(Chunk(piece, seed=3))
    torch.testing.assert_close(cut.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_the_chunks_rate_and_a_groups_own_rate_are_factors_of_the_step() -> None:
    data, model, twin = ratings(), explicit(), explicit()
    bound(model, SGD(model.parameters(), lr=0.2), data).run(Chunk(rows(3), seed=0, rate=0.5))
    bound(twin, SGD(twin.parameters(), lr=0.1), data).run(Chunk(rows(3), seed=0))
    same(model, twin, 1e-7)
    groups = [{"params": [twin.user.weight], "lr": 0.0}, {"params": [twin.item.weight, twin.item_bias.weight]}]  # type: ignore[union-attr]
    before = copy.deepcopy(twin.state_dict())
    bound(twin, SGD(groups, lr=0.1), data).run(Chunk(rows(3), seed=0))
    changed = {key for key, value in twin.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"item.weight", "item_bias.weight"}  # the users' biases are in no group: they stay, too


def test_an_optimizers_weight_decay_is_l2() -> None:
    data, model, twin = ratings(), explicit(l2=0.3), explicit()
    bound(model, SGD(model.parameters(), lr=0.1), data).run(Chunk(np.arange(20), seed=0))
    bound(twin, SGD(twin.parameters(), lr=0.1, weight_decay=0.3), data).run(Chunk(np.arange(20), seed=0))
    same(model, twin, 0)


@pytest.mark.parametrize("rule", RULES)
def test_a_frozen_table_stays_as_it_is(rule: str) -> None:
    model = explicit(l2=0.1)
    model.item.weight.requires_grad_(False)
    before = model.item.weight.clone()
    update = bound(model, RULES[rule](param for param in model.parameters() if param.requires_grad), ratings())
    assert update.run(Chunk(np.arange(20), seed=0)).applied == 20
    assert torch.equal(model.item.weight, before)


@pytest.mark.parametrize("rule", RULES)
def test_hot_items_are_written_in_private_and_come_out_the_same(rule: str) -> None:
    data, model, twin = ratings(), explicit(), explicit()
    optimizer, other = RULES[rule](model.parameters()), RULES[rule](twin.parameters())
    hot: dict[str, HotRows] = {}
    for name in ("item.weight", "item_bias.weight"):
        param = model.get_parameter(name)
        beside = {name: param.detach(), **{f"{name}.{key}": value for key, value in optimizer.state[param].items()}}
        hot |= {
            key: HotRows(value.numpy(), np.arange(ITEMS, dtype=np.int32))
            for key, value in beside.items()
            if value.dim()
        }
    before = model.item.weight.detach().clone()
    update = bound(model, optimizer, data, hot)
    update.run(Chunk(np.arange(20), seed=0))
    assert torch.equal(model.item.weight, before)
    for copied in hot.values():
        copied.flush()
    bound(twin, other, data).run(Chunk(np.arange(20), seed=0))
    same(model, twin, 1e-6)


def test_a_table_with_a_few_hot_rows_is_written_directly_and_a_flush_adds_nothing() -> None:
    data, model, twin = ratings(), explicit(), explicit()
    hot = HotRows(model.item.weight.detach().numpy(), np.array([2, 5], np.int32))
    bound(model, SGD(model.parameters(), lr=0.1), data, {"item.weight": hot}).run(Chunk(np.arange(20), seed=0))
    hot.flush()
    bound(twin, SGD(twin.parameters(), lr=0.1), data).run(Chunk(np.arange(20), seed=0))
    same(model, twin, 0)


# ---- the race -------------------------------------------------------------------------------------------------------


class Lossy(np.ndarray):
    """Each number that is written there is overwritten by another worker at once with what it had read before."""

    def __setitem__(self, key: Any, value: Any) -> None: ...


IN_PYTHON: dict[str, Callable[..., Any]] = {
    "enter": lambda *place: (True, False),
    "ask_ahead": lambda *row: None,
    "ask_for_row": lambda *row: None,
    "load_row": lambda table, row, of: np.array(table[row]),
    "store_row": lambda table, row, value: table.__setitem__(row, value),
    "splat_row": lambda number, of: np.float32(number),
    "fused": lambda a, b, c: a * b + c,
    "root": np.sqrt,
    "total": np.sum,
    "totals": lambda *rows: np.array([row.sum() for row in rows]),
    "four": lambda *numbers: np.array(numbers, np.float32),
    "part": lambda vector, place: vector[place],
    "most": np.maximum,
}


@pytest.fixture(params=[False, True], ids=["by number", "by row"])
def in_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels as plain Python, which meets what only Python can do to an array."""
    import numba

    import hogwild.kernels.bpr  # noqa: F401 - first: what it takes from the module is not to be the patched one
    from hogwild.kernels import matrix_factorization as module
    from hogwild.kernels.simd import of_width

    kind = numba.typeof(of_width(5) if request.param else None)
    for name, function in list(vars(module).items()):
        overloaded = vars(module).get(f"_{name}")
        if hasattr(function, "py_func"):
            monkeypatch.setattr(module, name, function.py_func)
        if callable(function) and callable(overloaded):
            places = overloaded.__code__.co_argcount - 1
            monkeypatch.setattr(module, name, overloaded(*[None] * places, kind))
        if name in IN_PYTHON:
            monkeypatch.setattr(module, name, IN_PYTHON[name])
    return module


def naive_descent(rule: Any, table: Any, at: Any, gradient: Any, rate: Any, epsilon: Any) -> None:
    values, sums, _ = table
    sums[at] = sums[at] + gradient * gradient
    values[at] -= rate * gradient / (np.sqrt(sums[at]) + epsilon)


def longest_step(kernel: Any, is_rows: bool) -> float:
    """Return it for four samples without a row in common, each by itself or all at once."""
    rng, ids, longest = np.random.default_rng(2), np.arange(4, dtype=np.int32), 0.0
    for borders in ([0, 1, 4], [0, 4]):
        tables = [rng.normal(size=shape).astype(np.float32) for shape in ((USERS, 5), (ITEMS, 5), (USERS,), (ITEMS,))]
        before = [table.copy() for table in tables]
        sums = [np.zeros(table.shape[:1] if is_rows else table.shape, np.float32) for table in tables]
        numbers, batches = np.tile(np.array([0.1, 0.01, 1e-10], np.float32), (4, 1)), len(borders) - 1
        given = (np.empty(0, np.int64), borders, np.ones(batches, np.float32), np.zeros(batches, np.int64))
        place = (np.zeros(2, np.int64), 0, False)
        data = (ids, ids, rng.normal(3, size=4).astype(np.float32), np.float32(3))
        views = [(table, each.view(Lossy), None) for table, each in zip(tables, sums, strict=True)]
        found = kernel(given, place, None, data, views, numbers)
        assert found[1:2] + found[3:] == (batches, 4, batches)
        longest = max(longest, *(float(abs(table - old).max()) for table, old in zip(tables, before, strict=True)))
    return longest


def test_a_lost_write_of_a_sum_never_makes_a_step_longer_than_the_rate(in_python: Any) -> None:
    assert 0.01 < longest_step(in_python.adagrad, is_rows=False) <= 0.1 * 1.001
    assert 0.01 < longest_step(in_python.row_adagrad, is_rows=True) <= 0.1 * np.sqrt(5) * 1.001


@pytest.mark.parametrize("in_python", [False], indirect=True)
def test_a_step_that_divides_by_what_is_read_again_would_be_much_longer(
    in_python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hogwild.kernels import bpr

    monkeypatch.setattr(in_python, "descend", naive_descent)
    assert longest_step(in_python.adagrad, is_rows=False) > 1e4
    monkeypatch.undo()
    assert bpr.descend is in_python.descend, "ranking's steps are the same ones"


# ---- pairs ----------------------------------------------------------------------------------------------------------


def test_what_is_drawn_for_a_user_is_never_what_the_user_has() -> None:
    data = ratings(density=0.7)
    shuffled = np.random.default_rng(1).permutation(len(data["user"]))
    for arrays in (data, {key: value[shuffled] for key, value in data.items()}):
        model = implicit()
        update = bound(model, SGD(model.parameters(), lr=0.1), arrays)
        for at in range(0, len(data["user"]), 3):
            had = set(arrays["item"][arrays["user"] == arrays["user"][at]].tolist())
            before = model.item_bias.weight.detach().clone()
            tally = update.run(Chunk(rows(at), seed=at))
            changed = set((model.item_bias.weight != before).flatten().nonzero().flatten().tolist())
            assert changed & had == ({int(arrays["item"][at])} if tally.applied else set())
            assert len(changed) == 2 * tally.applied


def test_a_user_who_has_everything_makes_no_pair() -> None:
    data = ratings(density=1.0)
    model = implicit()
    before = copy.deepcopy(model.state_dict())
    assert bound(model, SGD(model.parameters(), lr=0.1), data).run(Chunk(rows(1, 2), seed=0)) == Tally(0.0, 0)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_what_is_drawn_follows_from_the_chunks_seed() -> None:
    def trained(seed: int) -> Tensor:
        model = implicit()
        bound(model, SGD(model.parameters(), lr=0.1), ratings()).run(Chunk(np.arange(20), seed=seed))
        return model.item.weight.detach()

    assert torch.equal(trained(7), trained(7))
    assert not torch.equal(trained(7), trained(8))


@pytest.mark.parametrize("kind", [BprFactorization, WarpFactorization])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_pairs_teach_who_likes_what(rule: str, kind: type[BprFactorization]) -> None:
    """Even users have even items, odd ones odd items."""
    user, item = (
        part.astype(np.int32) for part in np.nonzero(np.add.outer(np.arange(USERS), np.arange(ITEMS)) % 2 == 0)
    )
    data = {"user": user, "item": item, "rating": np.ones(len(user), np.float32)}
    model = kind(USERS, ITEMS, 4)
    update = bound(model, RULES[rule](model.parameters()), data)
    for epoch in range(120):
        update.run(Chunk(np.random.default_rng(epoch).permutation(len(user)), seed=epoch))
    scores = model.scores(torch.arange(USERS)).numpy()
    has = np.zeros((USERS, ITEMS), bool)
    has[user, item] = True
    better = [(scores[u][has[u]][:, None] > scores[u][~has[u]]).mean() for u in range(USERS)]
    assert np.mean(better) > 0.95


@pytest.mark.parametrize("kind", [BprFactorization, WarpFactorization])
def test_an_item_that_the_training_data_lacks_is_nobodys_wrong_answer(kind: type[BprFactorization]) -> None:
    """A run that continues may keep such rows."""
    data, gone = ratings(), ITEMS - 2
    data = {name: array[data["item"] != gone] for name, array in data.items()}
    model = implicit(kind)
    before = model.item.weight[gone].clone()
    update = bound(model, SGD(model.parameters(), lr=0.1), data)
    for seed in range(20):
        update.run(Chunk(np.arange(len(data["user"])), seed=seed))
    assert torch.equal(model.item.weight[gone], before)
    model.on_data(data, None)
    optimizer = SGD(model.parameters(), lr=0.1)
    for at in range(len(data["user"])):
        autograd_step(model, optimizer, data, at)
    assert torch.equal(model.item.weight[gone], before)
    model.eval()
    user, item = torch.arange(USERS).repeat(50), torch.arange(USERS).repeat(50) % ITEMS
    drawn = set(model.drawn(user, item).tolist())
    assert len(drawn) > 4
    assert gone not in drawn


def test_warp_in_autograd_draws_until_a_margin_is_below_1_and_weighs_by_the_rank() -> None:
    model = ToldWarp(4, 101, 2, tries=3)
    with torch.no_grad():
        model.user.weight.zero_()
        model.item_bias.weight[:] = torch.tensor([[5.0], [4.5], *[[0.0]] * 99])
    model.others = (7, 1, 1)
    user, item = torch.tensor([0, 1]), torch.tensor([0, 1])
    other, weights = model.violating(user, item[:1].repeat(2))
    assert other.tolist() == [1, 1]  # the second draw: rank 100 / 2
    torch.testing.assert_close(weights, torch.full((2,), sum(1 / k for k in range(1, 51))), rtol=1e-3, atol=0)
    model.others = (7, 8, 9)
    assert model.violating(user, item)[1].tolist() == [0.0, 0.0]
    margins, weights = model(user, item)
    assert WarpLoss()(margins * 0, torch.zeros(2)) == 1.0, "margins alone are a hinge loss"
    model.others = (1, 1, 1)
    data = {"user": np.zeros(3, np.int32), "item": np.array([0, 1, 2], np.int32), "rating": np.ones(3, np.float32)}
    data = {name: np.append(array, np.arange(101, dtype=array.dtype)) for name, array in data.items()}
    data["user"][3:] = 1
    model.on_data(data, None)
    assert model.violating(user[:1], item[:1])[1].tolist() == [0.0], "user 0 has item 1"


def test_autograd_draws_another_item_at_random_in_training_and_always_the_same_in_evaluation() -> None:
    model = implicit()
    user, item = torch.arange(USERS).repeat(50), torch.arange(USERS).repeat(50) % ITEMS
    drawn = model.drawn(user, item)
    assert set(drawn.tolist()) == set(range(ITEMS))
    assert not (drawn == item).any()
    assert not torch.equal(drawn, model.drawn(user, item))
    model.eval()
    fixed = model.drawn(user, item)
    assert torch.equal(fixed, model.drawn(user, item))
    assert not (fixed == item).any()
    assert 0 <= int(fixed.min()) <= int(fixed.max()) < ITEMS


def test_autograd_too_draws_what_the_user_has_not_and_training_does_not_know_what_is_held_back() -> None:
    model, every = implicit(), np.arange(ITEMS, dtype=np.int32)
    parts = [{"user": np.zeros(len(items), np.int32), "item": items} for items in (every[:4], every[4:7])]
    parts[0] = {
        "user": np.repeat(np.array([0, 1], np.int32), [4, ITEMS]),
        "item": np.append(every[:4], every),  # user 1 has everything, so all of it may be drawn
    }
    train, val = ({**part, "rating": np.ones(len(part["user"]), np.float32)} for part in parts)
    model.on_data(train, val)
    user, item = torch.zeros(400, dtype=torch.int32), torch.arange(400) % 4
    in_training = torch.bincount(model.drawn(user, item), minlength=ITEMS)  # eight draws: all are taken in 1 of 200
    assert in_training[4:].min() > 20
    assert in_training[:4].sum() < 20
    model.eval()
    assert torch.bincount(model.drawn(user, item), minlength=ITEMS)[7:].sum() >= 300


# ---- rows as sums of features


@pytest.mark.parametrize("rule", [SGD, Adagrad])
@pytest.mark.parametrize("kind", [BprFactorization, WarpFactorization])
def test_without_any_feature_of_a_row_it_is_the_plain_model(kind: Any, rule: Any) -> None:
    data, plain = ratings(), kind(USERS, ITEMS, FACTORS)
    model = kind(USERS, ITEMS, FACTORS, item_features=3)
    model.load_state_dict(plain.state_dict(), strict=False)
    every = np.arange(len(data["user"]))
    tallies = [bound(one, rule(one.parameters(), lr=0.1), data).run(Chunk(every, seed=3)) for one in (model, plain)]
    assert tallies[0] == Tally(pytest.approx(tallies[1].loss, rel=1e-5), tallies[1].applied)
    for name, param in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), param, atol=1e-5, rtol=1e-5)


def test_scores_tables_and_forward_are_of_the_sums() -> None:
    model = hybrid(BprFactorization).eval()
    table, bias = model.item_feature.weight, model.item_feature_bias.weight  # type: ignore[union-attr]
    item = model.item.weight[2] + table[0] + 2 * table[1]
    user = model.user.weight[3] + model.user_feature.weight[0] - 2 * model.user_feature.weight[1]  # type: ignore[operator]
    wanted = user @ item + (model.item_bias.weight[2] + bias[0] + 2 * bias[1]).squeeze()
    torch.testing.assert_close(model.scores(torch.tensor([3]))[0, 2], wanted)
    torch.testing.assert_close(model.vectors("items")[2], item)
    users, items, offsets = model.score_tables()
    torch.testing.assert_close(users[3] @ items[2] + offsets[2], wanted)
    margin = model._margins(torch.tensor([3]), torch.tensor([2]), torch.tensor([7]))
    torch.testing.assert_close(
        margin, (model.scores(torch.tensor([3]))[0, [2]] - model.scores(torch.tensor([3]))[0, 7])
    )


def test_a_model_without_rows_for_the_datas_features_is_refused() -> None:
    for model in (MatrixFactorization(USERS, ITEMS), BprFactorization(USERS, ITEMS, item_features=3)):
        with pytest.raises(ModelError, match=r"2 user_features, .* rows for 0"):
            model.on_names(NAMES)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "rule", "words"),
    [
        (nn.L1Loss(), lambda p: SGD(p, lr=0.1), "not for L1Loss"),
        (nn.MSELoss(reduction="sum"), lambda p: SGD(p, lr=0.1), "not for MSELoss"),
        (nn.MSELoss(), lambda p: SGD(p, lr=0.1, momentum=0.9), "momentum=0.9"),
        (nn.MSELoss(), lambda p: Adagrad(p, lr_decay=0.1), "lr_decay=0.1"),
        (nn.MSELoss(), lambda p: SGD(p, lr=0.1, maximize=True), "maximize=True"),
        (nn.MSELoss(), lambda p: torch.optim.Adam(p), "not Adam"),
    ],
)
def test_what_the_kernels_do_not_know_is_said(loss: Any, rule: Any, words: str) -> None:
    model = explicit()
    assert words in model.fused(loss, rule(model.parameters()))


def test_ranking_has_no_row_wise_rule_and_no_other_loss_and_float64_no_kernel() -> None:
    model = implicit()
    assert "not RowWiseAdagrad" in model.fused(BprLoss(), RowWiseAdagrad(model.parameters()))
    assert "hogwild.losses.BprLoss" in model.fused(nn.MSELoss(), SGD(model.parameters(), lr=0.1))
    assert "hogwild.losses.WarpLoss" in implicit(WarpFactorization).fused(BprLoss(), SGD(model.parameters(), lr=0.1))
    for make in (lambda: BprLoss(-1.0), lambda: WarpFactorization(2, 2, tries=0)):
        with pytest.raises(ValueError, match=r"is -1\.0|is 0"):
            make()
    wide = explicit().double()
    assert "float64" in wide.fused(nn.MSELoss(), SGD(wide.parameters(), lr=0.1))


@pytest.mark.parametrize("name", ["user", "item"])
def test_data_with_more_rows_than_the_model_is_refused_before_a_kernel_reads_it(name: str) -> None:
    data, model = ratings(), explicit()
    data[name] = data[name] + np.int32(50)
    with pytest.raises(ModelError, match=f"the data has {name}s 50 to"):
        model.on_data(data, None)
    with pytest.raises(ModelError, match=f"remove {name}s"):
        bound(model, SGD(model.parameters(), lr=0.1), data)
    with pytest.raises(ModelError, match="the data has "):
        model.on_data(ratings(), data)


def test_data_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the data has triple int32 \(4, 3\)"):
        explicit().on_data({"triple": np.zeros((4, 3), np.int32)}, None)


def test_the_mean_is_that_of_the_training_data_unless_it_is_given() -> None:
    data = ratings()
    for given, expected in ((None, float(data["rating"].mean())), (2.5, 2.5)):
        model = MatrixFactorization(USERS, ITEMS, mean=given)
        model.on_data(data, None)
        assert model.mean.item() == pytest.approx(expected)


def test_l2_fits_the_training_data_unless_it_is_given() -> None:
    """As 0.7 standard deviations of noise in a full table would need it: they add a singular value of about
    0.7 s (sqrt(USERS) + sqrt(ITEMS)), and l2 takes l2 sqrt(USERS * ITEMS) off each."""
    data, model = ratings(density=1.0), explicit()
    assert model.l2 == 0.0, "nothing was seen yet"
    said = model.choose_penalty(data, nn.MSELoss(), RULES["adagrad"](model.parameters()))
    noise = 0.7 * float(data["rating"].std())
    assert model.l2 == pytest.approx(noise * (USERS**0.5 + ITEMS**0.5) / (USERS * ITEMS) ** 0.5)
    assert (
        said
        == f"l2 of the model is {model.l2:.3g}, which suits {len(data['rating'])} ratings of {ITEMS} items by {USERS} "
        + ("users; give it to choose another, 0 for none")
    )
    for given in (0.0, 0.3):
        chosen = explicit(l2=given)
        assert chosen.choose_penalty(data, nn.MSELoss(), RULES["adagrad"](model.parameters())) is None
        assert chosen.l2 == given
    decaying = RULES["adagrad"](model.parameters())
    decaying.param_groups[0]["weight_decay"] = 0.1
    for loss, optimizer in ((nn.L1Loss(), RULES["adagrad"](model.parameters())), (nn.MSELoss(), decaying)):
        assert model.choose_penalty(data, loss, optimizer) is None
        assert model.l2 == 0.0
