"""Recommendations: whom, which items, how many; somebody new."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import UsageError
from hogwild.inference.recommend import UNKNOWN, WITH_RATED, Had, ItemRanker, fold_in
from hogwild.models import BprFactorization, MatrixFactorization

USERS, ITEMS, FACTORS = 12, 9, 3
NAMES = [f"u{k}" for k in range(USERS - 1)] + [42], [f"film {k}" for k in range(ITEMS)]


def model_of(kind: type, **options: Any) -> Any:
    torch.manual_seed(1)
    model = kind(USERS, ITEMS, FACTORS, **options)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(std=0.4)  # biases, too
    return model


MODELS = [
    pytest.param(MatrixFactorization, {"mean": 3.0}, id="biases"),
    pytest.param(MatrixFactorization, {"bias": False}, id="no biases"),
    pytest.param(BprFactorization, {}, id="bpr"),
]


def random_pairs() -> dict[str, np.ndarray]:
    had = np.random.default_rng(5).random((USERS, ITEMS)) < 0.4
    had[2] = False  # a user without any
    had[4] = True  # and one with everything
    user, item = np.nonzero(had)
    mixed = np.random.default_rng(6).permutation(len(user))
    return {"user": user[mixed].astype(np.int32), "item": item[mixed].astype(np.int32)}


@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_users_get_the_best_items_that_they_do_not_have(kind: type, options: dict[str, Any]) -> None:
    model, pairs = model_of(kind, **options), random_pairs()
    ranker = ItemRanker(model, *NAMES, Had.of(USERS, pairs))
    rows = {
        (user, rank): (item, score) for block in ranker.for_users(top=4) for user, rank, item, score in _rows(block)
    }
    for number, user in enumerate(NAMES[0]):
        had = pairs["item"][pairs["user"] == number]
        scores = model.scores(torch.tensor([number]))[0]
        wanted = [int(k) for k in scores.argsort(descending=True) if k not in had][:4]
        found = ranker.for_user(user, top=4)
        assert [name for name, _ in found.items] == [f"film {k}" for k in wanted] and found.notes == ()
        assert [score for _, score in found.items] == pytest.approx(scores[wanted].tolist())
        for rank, (name, score) in enumerate(found.items, 1):
            assert rows.pop((str(user), rank)) == (name, pytest.approx(score, rel=1e-4))
    assert not rows


def _rows(block: Any) -> Any:
    (_, users), (_, ranks), (_, items), (_, scores) = block.columns()
    return zip(map(str, users), ranks.tolist(), map(str, items), scores.tolist(), strict=True)


@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_an_unknown_user_gets_the_most_popular_items(kind: type, options: dict[str, Any]) -> None:
    model = model_of(kind, **options)
    ranker = ItemRanker(model, *NAMES, Had.of(USERS, random_pairs()))
    found = ranker.for_user("nobody", top=3)
    wanted = [f"film {k}" for k in model.item_appeal().argsort(descending=True)[:3]]
    assert [name for name, _ in found.items] == wanted and found.notes == (UNKNOWN.format(user="nobody"),)
    (block,) = ranker.for_users(["u3", "nobody", "u3"], top=3)
    assert block.item[block.user == "nobody"].tolist() == wanted
    assert [name for name, _ in ranker.for_user("u3", 3).items] * 2 == block.item[block.user == "u3"].tolist()


def test_blocks_of_users_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, Had.of(USERS, random_pairs()))
    (whole,) = ranker.for_users(top=5)
    monkeypatch.setattr("hogwild.inference.recommend.SCORES_AT_ONCE", 3 * ITEMS)
    parts = [block.columns() for block in ranker.for_users(top=5)]
    assert len(parts) == USERS // 3
    for (_, column), *others in zip(whole.columns(), *parts, strict=True):
        joined = np.concatenate([values for _, values in others])
        if joined.dtype.kind == "f":
            np.testing.assert_allclose(column, joined, rtol=1e-4)
        else:
            np.testing.assert_array_equal(column, joined)


def test_names_are_found_as_text_and_without_data_a_note_says_so() -> None:
    ranker = ItemRanker(model_of(MatrixFactorization), *NAMES)
    assert ranker.for_user("42", 3) == ranker.for_user(42, 3)
    assert ranker.for_user(42, 3).notes == (WITH_RATED,)


@pytest.mark.parametrize("user", [42, 42.0, "42", " 42 ", "42.0", np.float32(42)])
def test_an_id_is_the_same_however_it_is_written(user: Any, caplog: pytest.LogCaptureFixture) -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert ranker.for_user(user) == ranker.for_user(42) and ranker.for_user(user).notes == ()
    (block,) = ranker.for_users([user], top=3)
    assert not caplog.records
    assert block.item.tolist() == [name for name, _ in ranker.for_user(42, top=3).items]


def test_unknown_users_of_many_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert [*ranker.for_users([42, "nobody", 43], top=1)]
    assert [one.getMessage() for one in caplog.records] == [
        "2 of 3 users are not in the training data: they get the most popular items"
    ]


def test_never_more_items_than_there_are() -> None:
    ranker = ItemRanker(model_of(MatrixFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert len(ranker.for_user("nobody").items) == ITEMS, "the default is 10, or all"
    assert ranker.for_user("u4", ITEMS).items == [], "who has everything gets nothing"
    with pytest.raises(UsageError, match=f"top {ITEMS + 1} is more than the {ITEMS} items"):
        ranker.for_user("u3", ITEMS + 1)
    ranker.allow(["film 7", "film 1"])
    assert {name for name, _ in ranker.for_user("nobody").items} == {"film 7", "film 1"}
    assert {name for name, _ in ranker.for_items({"film 7": 4.0}).items} == {"film 1"}
    for wrong in (0, -1, 2.0):
        with pytest.raises(UsageError, match="top must be a whole number >= 1"):
            ranker.for_user(1, top=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top 3 is more than the 2 allowed items"):
        ranker.for_user("nobody", 3)
    with pytest.raises(UsageError, match="'film 77' is not among the 9 items; did you mean 'film 7'"):
        ranker.allow(["film 77"])


def minimum(loss: Any, size: int) -> Tensor:
    """Return the (size,) float64 that minimises a loss, by Newton's method."""
    found = torch.zeros(size, dtype=torch.float64)
    for _ in range(50):
        gradient = torch.autograd.functional.jacobian(loss, found)
        found = found - torch.linalg.solve(torch.autograd.functional.hessian(loss, found), gradient)
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("l2", [0.3, None])
def test_somebody_new_gets_the_vector_that_fits_the_ratings(bias: bool, l2: float | None) -> None:
    model = model_of(MatrixFactorization, bias=bias, l2=l2, mean=2.5).double()
    items, ratings = torch.tensor([0, 3, 4, 8]), torch.tensor([5.0, 1.0, 4.5, 2.0], dtype=torch.float64)
    vectors, offsets = (table.detach() for table in model.score_tables()[1:])
    found = fold_in(model, items, ratings.tolist())
    if l2 is None:  # a little, or a vector of more numbers than ratings would be any
        l2 = 0.1 * float((model.user.weight.detach() @ vectors.T).std(correction=0))

    def loss(own: Tensor) -> Tensor:
        predicted = vectors[items] @ own[:-1] + offsets[items] + 2.5 + (own[-1] if bias else 0)
        return (predicted - ratings).square().sum() + len(items) * l2 / 2 * own.square().sum()

    own = minimum(loss, FACTORS + 1)
    wanted = vectors @ own[:-1] + offsets + 2.5 + (own[-1] if bias else 0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_somebody_new_without_ratings_gets_the_vector_that_ranks_his_items_first() -> None:
    model = model_of(BprFactorization, l2=0.05).double()
    items = torch.tensor([2, 5])
    others = torch.tensor([k for k in range(ITEMS) if k not in (2, 5)])
    vectors, offsets = (table.detach() for table in model.score_tables()[1:])

    def loss(own: Tensor) -> Tensor:
        scores = vectors @ own + offsets
        return F.softplus(scores[others] - scores[items, None]).mean() + 0.05 / 2 * own.square().sum()

    found = fold_in(model, items, [None, None])
    np.testing.assert_allclose(found, vectors @ minimum(loss, FACTORS) + offsets, atol=1e-3)
    everything = fold_in(model, torch.arange(ITEMS), [None] * ITEMS)
    np.testing.assert_allclose(everything, offsets, atol=1e-6, err_msg="no other items: nothing to learn from")


def test_ratings_are_given_where_the_model_knows_them() -> None:
    explicit, implicit = (ItemRanker(model_of(kind), *NAMES) for kind in (MatrixFactorization, BprFactorization))
    with pytest.raises(UsageError, match="MatrixFactorization needs the rating of each item; item 2 has none"):
        explicit.for_items({"film 1": 3.0, "film 2": None})
    with pytest.raises(UsageError, match="BprFactorization was trained without ratings; item 1 has 3"):
        implicit.for_items({"film 1": 3.0})
    assert "film 1" not in [name for name, _ in implicit.for_items({"film 1": None}).items]


def test_a_model_without_scores_is_refused() -> None:
    with pytest.raises(UsageError, match="Linear cannot score items"):
        ItemRanker(nn.Linear(2, 2), *NAMES)
