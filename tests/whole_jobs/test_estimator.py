"""The scikit-learn estimators: its own checks, its searches on processes that wait, and the Recommender."""

import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from hogwild.errors import UsageError
from hogwild.estimator import Classifier, Recommender, Regressor
from hogwild.workers.processes.fork_server import SERVER

Pairs = list[tuple[str, int]]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # data that the checks make odd on purpose
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_scikit_learns_own_checks_pass(kind: type[BaseEstimator]) -> None:
    results = check_estimator(kind(), on_fail=None, on_skip=None)
    assert {one["status"] for one in results} <= {"passed", "skipped"}, results


@pytest.mark.parametrize("made", [Classifier(), Regressor(), Recommender()])
def test_parameters_are_those_of_the_constructor(made: Any) -> None:
    assert clone(made.set_params(lr=0.5, epochs=7)).get_params() == made.get_params()
    assert (made.lr, made.epochs) == (0.5, 7)
    with pytest.raises(NotFittedError):
        made.predict(np.zeros((1, 2)))


BLOBS = make_blobs(240, 6, centers=3, cluster_std=2.0, random_state=0)
SERVERS: list[int | None] = []  # of Noting: the fork server after each fit


class Noting(Classifier):
    def fit(self, X: Any, y: Any) -> "Noting":
        super().fit(X, y)
        SERVERS.append(SERVER.pid)
        return self


@pytest.mark.processes
@pytest.mark.whole
def test_a_grid_search_forks_all_its_workers_from_one_server() -> None:
    SERVERS.clear()
    made = Noting(epochs=5, procs=1, random_state=0)
    found = GridSearchCV(made, {"lr": [1e-6, 0.01]}, cv=2).fit(*BLOBS)
    assert found.best_params_ == {"lr": 0.01} and found.best_score_ > 0.9
    assert len(SERVERS) == 5 and None not in SERVERS and len({*SERVERS}) == 1


@pytest.mark.processes
def test_a_fit_can_be_repeated_and_leaves_nothing_but_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state = torch.get_rng_state()
    one, same = (Classifier(epochs=2, random_state=0).fit(*BLOBS) for _ in range(2))
    other = Classifier(epochs=2, random_state=1).fit(*BLOBS)
    assert np.array_equal(one.predict_proba(BLOBS[0]), same.predict_proba(BLOBS[0]))
    assert not np.array_equal(one.predict_proba(BLOBS[0]), other.predict_proba(BLOBS[0]))
    assert torch.equal(torch.get_rng_state(), state)
    assert [*tmp_path.iterdir()] == [] and capsys.readouterr().err == ""
    assert one.result_.state == "succeeded" and not one.model_.training
    Classifier(epochs=1, verbose=True).fit(*BLOBS)
    assert "run directory" in capsys.readouterr().err


def linear(features: int, outputs: int) -> nn.Module:
    return nn.Linear(features, outputs)


def test_a_model_an_optimizer_and_keywords_of_ones_own(tmp_path: Path) -> None:
    settings = {"val": {"fraction": 0.25}, "run_dir": tmp_path / "run"}
    rule = partial(torch.optim.SGD, momentum=0.9)
    made = Classifier(linear, optimizer=rule, lr=0.1, epochs=3, settings=settings).fit(BLOBS[0], BLOBS[1] == 1)
    assert made.classes_.tolist() == [False, True] and isinstance(made.model_, nn.Linear)
    assert made.result_.history["epoch"].tolist() == [1, 2, 3]
    assert (tmp_path / "run" / "checkpoints" / "best").exists()


# ---- recommendations ------------------------------------------------------------------------------------------------

USERS, ITEMS = 60, 40


@pytest.fixture(scope="module")
def rated() -> tuple[Pairs, np.ndarray]:
    """Pairs in no order, and ratings that two vectors explain."""
    rng = np.random.default_rng(0)
    of_users, of_items = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    places = rng.permutation(np.argwhere(rng.random((USERS, ITEMS)) < 0.5))
    ratings = 3 + (of_users[places[:, 0]] * of_items[places[:, 1]]).sum(1)
    return [(f"u{user}", int(item) + 100) for user, item in places], ratings


def made(**more: Any) -> Recommender:
    return Recommender(4, batch_size=64, random_state=0, **{"epochs": 20, **more})


@pytest.mark.processes
def test_ratings_are_predicted_and_unknown_names_get_what_is_usual(rated: tuple[Pairs, np.ndarray]) -> None:
    pairs, ratings = rated
    cut = len(pairs) * 4 // 5
    found = made().fit(pairs[:cut], ratings[:cut])
    assert -0.6 * ratings.std() < found.score(pairs[cut:], ratings[cut:]) < 0
    seen, strange_item, strange = found.predict([("u0", 105), ("u0", 1), ("nobody", 1)])
    found.model_.requires_grad_(False)
    assert seen == pytest.approx(float(found.model_(torch.tensor([0]), torch.tensor([5]))), rel=1e-5)
    bias = float(found.model_.user_bias.weight[0])
    assert strange_item - strange == pytest.approx(bias, rel=1e-4)
    assert strange == pytest.approx(float(found.model_.item_appeal().mean()), rel=1e-5)


@pytest.mark.processes
def test_ratings_come_in_a_third_column_or_beside(rated: tuple[Pairs, np.ndarray]) -> None:
    pairs, ratings = rated
    frame = pd.DataFrame(pairs, columns=["user", "item"])
    beside = made(epochs=2).fit(pairs, ratings)
    for table in (frame.assign(rating=ratings), [(*pair, one) for pair, one in zip(pairs, ratings, strict=True)]):
        assert np.array_equal(made(epochs=2).fit(table).predict(table), beside.predict(pairs))
    assert beside.items_.dtype.kind == "i" and beside.users_.dtype.kind == "U"


@pytest.mark.processes
def test_what_is_recommended_is_new_to_the_user_and_the_best_first(rated: tuple[Pairs, np.ndarray]) -> None:
    pairs, ratings = rated
    found = made().fit(pairs, ratings)
    had = {item for user, item in pairs if user == "u3"}
    every = found.recommend("u3", top=ITEMS)
    assert {item for item, _ in every} == {*range(100, 100 + ITEMS)} - had
    scores = [score for _, score in every]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx(found.predict([("u3", item) for item, _ in every]), rel=1e-4)
    assert [item for item, _ in found.recommend("nobody", 3)] == [
        100 + int(place) for place in found.model_.item_appeal().argsort(descending=True)[:3]
    ]
    assert pickle.loads(pickle.dumps(found)).recommend("u3", ITEMS) == every


@pytest.mark.processes
def test_without_ratings_the_score_is_the_auc_over_what_a_user_has_nowhere(rated: tuple[Pairs, np.ndarray]) -> None:
    pairs, ratings = rated
    liked = [pair for pair, rating in zip(pairs, ratings, strict=True) if rating > 3.3]
    cut = len(liked) * 4 // 5
    train, test = liked[:cut], [*liked[cut:], ("u0", 1), ("nobody", 100)]
    found = made(lr=0.05).fit(train)
    assert not found.has_ratings_ and found.score(test) > 0.75
    shares: list[float] = []
    for user, item in test:
        if item not in found.items_:
            continue
        has = {other for one, other in [*train, *test] if one == user}
        others = found.predict([(user, one) for one in found.items_ if one not in has])
        shares.append(float((others < found.predict([(user, item)])[0]).mean()))
    assert found.score(test) == pytest.approx(float(np.mean(shares)), abs=1e-3)


@pytest.mark.processes
@pytest.mark.parametrize("has_ratings", [True, False])
def test_more_pairs_leave_the_rows_of_others_as_they_are_and_add_up_what_users_have(
    has_ratings: bool, rated: tuple[Pairs, np.ndarray]
) -> None:
    pairs, ratings = rated
    new: Pairs = [("u0", 999), ("newcomer", 105), ("newcomer", 999)]
    found = made(epochs=3).partial_fit(pairs, ratings if has_ratings else None)
    before, sums = found.model_, found._rule.state
    had = {item for user, item in pairs if user == "u3"}
    found.partial_fit(new, [4.0, 2.0, 3.0] if has_ratings else None)
    assert found.users_.tolist() == [*sorted({user for user, _ in pairs}), "newcomer"] and found.items_[-1] == 999
    for (name, old), now in zip(before.named_parameters(), found.model_.parameters(), strict=True):
        touched = {"user": ["u0"], "item": [105, 999]}[name.split("_")[0].split(".")[0]]
        names = (found.users_ if name.startswith("user") else found.items_).tolist()
        same = [row for row, one in enumerate(names[: len(old)]) if one not in touched]
        assert torch.equal(old[same], now[same]), name
        assert torch.equal(sums[old]["sum"][same], found._rule.state[now]["sum"][same]), name
        assert not torch.equal(old[names.index(touched[0])], now[names.index(touched[0])]), name
    assert {item for item, _ in found.recommend("u3", top=ITEMS + 1)} == {*range(100, 100 + ITEMS), 999} - had
    assert 999 not in [item for item, _ in found.recommend("u0", ITEMS + 1)]
    assert pickle.loads(pickle.dumps(found)).partial_fit(new, [1.0] * 3 if has_ratings else None).users_[-1]
    with pytest.raises(UsageError, match="these have"):
        found.partial_fit(new, None if has_ratings else [1.0] * 3)


@pytest.mark.processes
def test_similar_items_are_those_with_the_nearest_vectors(rated: tuple[Pairs, np.ndarray]) -> None:
    found = made(epochs=3).fit(*rated)
    vectors = found.model_.item.weight.detach()
    cosines = torch.cosine_similarity(vectors, vectors[found.items_.tolist().index(107)][None])
    wanted = [int(found.items_[row]) for row in cosines.argsort(descending=True)][1:4]
    for item in (107, "107"):
        near = found.similar_items(item, top=3)
        assert [name for name, _ in near] == wanted
        assert [cosine for _, cosine in near] == pytest.approx(cosines.sort(descending=True)[0][1:4].tolist(), abs=1e-6)
    with pytest.raises(UsageError, match="'1' is not among the 40 items"):
        found.similar_items(1)


@pytest.mark.processes
def test_a_search_over_a_recommender(rated: tuple[Pairs, np.ndarray]) -> None:
    pairs, ratings = rated
    table = pd.DataFrame(pairs).assign(rating=ratings)
    found = GridSearchCV(made(), {"lr": [1e-6, 0.1]}, cv=KFold(2)).fit(table)
    assert found.best_params_ == {"lr": 0.1}
    assert (cross_val_score(made(), table, cv=KFold(2)) < 0).all()


@pytest.mark.parametrize(
    ("table", "ratings"), [([1, 2], None), ([[1], [2]], None), ([[1, 2, 3, 4]], None), ([], None), ([[1, 2]], [1, 2])]
)
def test_other_columns_are_refused(table: Sequence[Any], ratings: Sequence[float] | None) -> None:
    with pytest.raises(UsageError, match=r"a user, an item and perhaps a rating") as raised:
        made().fit(table, ratings)
    assert raised.value.code == "usage/ratings"


def test_a_rating_that_is_no_number_is_refused_with_its_row() -> None:
    with pytest.raises(UsageError, match="rating nan in row 1: ratings must be finite"):
        made().fit([[1, 2], [1, 3]], [1.0, np.nan])


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hogwild.estimator")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(UsageError, match=r"hogwild\.estimator needs scikit-learn .*pip install 'hogwild\[sklearn\]'"):
        import hogwild.estimator  # noqa: F401
