"""Metrics of recommenders, beside plain loops over all items."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hogwild.errors import BuildError
from hogwild.metrics.panel import Panel
from hogwild.metrics.popularity import popularity
from hogwild.metrics.result_row import EvalSums
from hogwild.models import BprFactorization, MatrixFactorization

pytest.importorskip("numba")
from hogwild.metrics.ranking import Ranking

NAMES = [f"{kind}@{k}" for k in (1, 10, 40) for kind in ("precision", "recall", "ndcg", "map", "mrr", "coverage")]
NAMES = [*NAMES[:14], "auc"]  # MOST
Arrays = dict[str, np.ndarray]


class Tables(nn.Module):
    """Scores of small whole numbers: exact in any order of summation, with many ties."""

    def __init__(self, users: int, items: int, factors: int, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        made = (random.integers(-2, 3, shape) for shape in ((users, factors), (items, factors), (items,)))
        self.tables = tuple(torch.from_numpy(table.astype(np.float32)) for table in made)

    def score_tables(self) -> Any:
        return self.tables


def drawn(users: int, items: int, share: float, seed: int) -> tuple[Arrays, Arrays]:
    """Ratings from 1 to 5 by user, then item: training data with pairs that occur twice, and held-out data of which
    some pairs are known, or there twice."""
    random = np.random.default_rng(seed)
    parts = []
    for many in (share, share / 3):
        pairs = np.argwhere(random.random((users, items)) < many)
        twice = np.sort(np.append(np.arange(len(pairs)), random.integers(0, max(1, len(pairs)), len(pairs) // 9)))
        user, item = (column.copy() for column in pairs[twice[twice < len(pairs)]].T.astype(np.int32))
        parts.append({"user": user, "item": item, "rating": random.integers(1, 6, len(user)).astype(np.float32)})
    return parts[0], parts[1]


def found(
    model: Any, train: Arrays, val: Arrays, names: Sequence[str] = NAMES, cuts: Iterable[int] = (), least: float = -1.0
) -> dict[str, float]:
    """As workers compute them, slice by slice."""
    panel = Panel.of({name: name for name in names}, model, nn.MSELoss())
    marks = np.zeros((panel.coverages, len(model.score_tables()[1])), np.uint8)
    ranking = Ranking(panel.ranked, model.score_tables, train, val, least, marks)
    edges = sorted({0, len(val["user"]), *cuts})
    sums = EvalSums()
    for first, stop in pairwise(edges):
        sums += panel.add_ranked(ranking.sums(first, stop, lambda: None))
    values = panel.values(sums + panel.covered(marks))
    return {name: values[name] for name in names if name in values}


def plain(
    model: Any, train: Arrays, val: Arrays, names: Sequence[str] = NAMES, least: float = -1.0
) -> dict[str, float]:
    users, items, offsets = (table.double().numpy() for table in model.score_tables())
    of_user: dict[str, list[float]] = {}
    covered: dict[str, set[int]] = {name: set() for name in names if name.startswith("coverage")}
    for user in range(len(users)):
        known = {*train["item"][train["user"] == user].tolist()}
        held = {*val["item"][(val["user"] == user) & (val["rating"] >= least)].tolist()} - known
        if not held:
            continue
        scores = items @ users[user] + offsets
        for item, score in enumerate(scores):
            if not score < math.inf:
                scores[item] = -math.inf if item in held else math.inf
        order = [item for item in np.argsort(-scores, kind="stable").tolist() if item not in known]
        others = [item for item in order if item not in held]
        ranked = [item for item in order if scores[item] > -math.inf]
        ties = [a for a in held if scores[a] > -math.inf]  # the others are below all
        pairs = [(scores[a] > scores[b]) + (a in ties and scores[a] == scores[b]) / 2 for a in held for b in others]
        if pairs:
            of_user.setdefault("auc", []).append(math.fsum(pairs) / len(pairs))
        for name in names:
            if name == "auc":
                continue
            kind, k = name.split("@")[0], int(name.split("@")[1])
            hits = [item in held for item in ranked[:k]]
            ranks = [rank for rank, hit in enumerate(hits, 1) if hit]
            best = math.fsum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(held)) + 1))
            if kind == "coverage":
                covered[name].update(ranked[:k])
                continue
            value = {
                "precision": len(ranks) / k,
                "recall": len(ranks) / len(held),
                "ndcg": math.fsum(1 / math.log2(rank + 1) for rank in ranks) / best,
                "map": math.fsum((n + 1) / rank for n, rank in enumerate(ranks)) / min(k, len(held)),
                "mrr": 1 / ranks[0] if ranks else 0.0,
            }[kind]
            of_user.setdefault(name, []).append(value)
    means = {name: math.fsum(values) / len(values) for name, values in of_user.items()}
    means |= {name: len(some) / len(items) for name, some in covered.items()}
    return {name: means[name] for name in names if name in means}


@pytest.mark.parametrize(
    ("users", "items", "factors", "share"),
    [(150, 300, 3, 0.05), (70, 20, 20, 0.3), (40, 1500, 33, 0.01), (65, 129, 1, 0.6), (9, 5, 2, 0.9)],
    ids=str,
)
def test_every_metric_is_that_of_plain_loops_with_ties_and_with_k_above_the_items(
    users: int, items: int, factors: int, share: float
) -> None:
    for seed in range(2):
        model, (train, val) = Tables(users, items, factors, seed), drawn(users, items, share, seed)
        wanted = plain(model, train, val)
        assert found(model, train, val) == pytest.approx(wanted, rel=1e-12)
        several = found(model, train, val, cuts=np.random.default_rng(seed).integers(0, len(val["user"]), 7).tolist())
        assert several == pytest.approx(wanted, rel=1e-12), "cut into slices"
        assert found(model, train, val, least=4.0) == pytest.approx(plain(model, train, val, least=4.0), rel=1e-12)


@pytest.mark.parametrize(("users", "items", "share"), [(150, 300, 0.05), (70, 20, 0.3), (65, 129, 0.6), (9, 5, 0.9)])
def test_popularity_is_what_a_model_gets_that_scores_by_the_number_of_users(
    users: int, items: int, share: float
) -> None:
    for seed in range(2):
        train, val = drawn(users, items, share, seed)
        pairs = {*zip(train["user"].tolist(), train["item"].tolist(), strict=True)}
        counts = np.bincount([item for _, item in pairs], minlength=items).astype(np.float32)
        model = Tables(users, items, 1, 0)
        model.tables = (torch.zeros(users, 1), torch.zeros(items, 1), torch.from_numpy(counts))
        for least in (-1.0, 4.0, 9.0):
            wanted = found(model, train, val, least=least)
            assert popularity(NAMES, items, train, val, least) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("k", [1, 16, 17, 100, 1000])
def test_any_k_takes_the_best_whether_scores_rise_or_fall_with_the_items(k: int) -> None:
    names = [f"ndcg@{k}", f"map@{k}", f"coverage@{k}"]
    train, val = drawn(30, 900, 0.02, 1)
    for step in (1.0, -1.0, 0.0):
        model = Tables(30, 900, 4, 1)
        model.tables[2].add_(step * torch.arange(900))
        assert found(model, train, val, names) == pytest.approx(plain(model, train, val, names), rel=1e-12)


def test_data_in_the_order_of_a_grid_is_the_same_data() -> None:
    model, (train, val) = Tables(80, 200, 5, 2), drawn(80, 200, 0.1, 2)
    wanted = found(model, train, val, least=3.0)
    rows = [np.random.default_rng(3).permutation(len(part["user"])) for part in (train, val)]
    mixed = [{name: array[at] for name, array in part.items()} for part, at in zip((train, val), rows, strict=True)]
    assert found(model, *mixed, least=3.0) == wanted


def test_no_model_gains_from_scores_that_are_not_finite() -> None:
    train, val = drawn(60, 150, 0.1, 4)
    for value in (math.nan, math.inf, -math.inf):
        for places in (slice(None), slice(3, 40, 5)):
            model = Tables(60, 150, 5, 4)
            model.tables[2][places] = value
            got = found(model, train, val)
            assert got == pytest.approx(plain(model, train, val), rel=1e-12)
            if places == slice(None):
                assert got["ndcg@10"] == 0.0 and got["auc"] == 0.0


def test_users_who_have_every_item_or_no_held_out_one_do_not_count() -> None:
    model = Tables(4, 6, 2, 0)
    every = np.arange(6, dtype=np.int32)
    ones = np.ones(6, np.float32)
    train = {"user": np.zeros(6, np.int32), "item": every, "rating": ones}
    val = {"user": np.array([0, 0, 2, 2, 2, 2, 2, 2], np.int32), "item": np.append(every[:2], every)}
    val["rating"] = np.ones(8, np.float32)
    # User 2 has no other item than the held-out ones, which are all found; there is no pair for the area.
    names = ["precision@3", "recall@6", "ndcg@3", "auc", "coverage@2"]
    got = found(model, train, val, names)
    assert got == {"precision@3": 1.0, "recall@6": 1.0, "ndcg@3": 1.0, "coverage@2": pytest.approx(2 / 6)}
    assert found(model, train, {name: array[:2] for name, array in val.items()}, names) == {"coverage@2": 0.0}


def test_equal_items_tie_whatever_their_numbers() -> None:
    """Scores that round: the area has an item's score from another product than its neighbours'."""
    random = torch.Generator().manual_seed(5)
    model = Tables(50, 300, 64, 0)
    items = torch.randn(1, 64, generator=random).expand(300, 64).contiguous()
    model.tables = (torch.randn(50, 64, generator=random), items, torch.zeros(300))
    assert found(model, *drawn(50, 300, 0.1, 5), names=["auc"]) == {"auc": 0.5}


def test_the_models_of_ratings_rank_as_their_scores_do() -> None:
    train, val = drawn(40, 60, 0.2, 6)
    without = MatrixFactorization(40, 60, 7, bias=False)
    for model in (BprFactorization(40, 60, 7), MatrixFactorization(40, 60, 7), without):
        with torch.no_grad():
            for param in model.parameters():
                param.normal_()
        users, items, offsets = (table.detach() for table in model.score_tables())
        apart = model.scores(torch.arange(40)) - (users @ items.T + offsets)
        assert float((apart - apart[:, :1]).abs().max()) < 1e-4
        model.on_data(train, val)
        least = -1.0 if isinstance(model, BprFactorization) else float(train["rating"].mean(dtype=np.float64))
        ranking = Ranking.of(["recall@10"], model, train, val, np.zeros((0, 60), np.uint8))
        assert ranking.least == pytest.approx(least) or least < 0 > ranking.least
    assert MatrixFactorization(4, 6, least_relevant=4.5).least_relevant == 4.5


def test_metrics_of_all_items_need_a_model_that_ranks() -> None:
    with pytest.raises(
        BuildError, match=r"ndcg@10: Identity does not rank items; use hogwild\.models\.Matrix"
    ) as error:
        Panel.of({"ndcg@10": "ndcg@10"}, nn.Identity(), nn.MSELoss())
    assert error.value.code == "model/metric"
    assert Panel.of({"auc": "auc"}, nn.Identity(), nn.MSELoss()).whole == ("auc",)
    assert Panel.of({"auc": "auc"}, Tables(1, 1, 1, 0), nn.MSELoss()).ranked == ("auc",)
