"""Recommendations by what users have; and missing links of a knowledge graph: the best tails and heads, without the
known ones, and neighbours of entities."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hogwild
from hogwild.errors import UsageError
from hogwild.inference.recommend import UNKNOWN, WITH_KNOWN, Had, ItemRanker, complete, fold_in
from hogwild.models import BprFactorization, ComplEx, DistMult, MatrixFactorization, RotatE, TransE
from tests.helpers.predicting import Say

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
        assert [name for name, _ in found.items] == [f"film {k}" for k in wanted]
        assert bool(found.notes) == (not wanted), "who has some of them knows why there are fewer"
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
    assert [name for name, _ in found.items] == wanted and found.notes == (UNKNOWN.format(user="'nobody'", near=""),)
    (note,) = ranker.for_user("u33").notes
    assert note.endswith("; did you mean 'u3'?")
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


def test_what_is_gone_or_left_out_in_a_call_is_not_recommended() -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, gone=[7, 8])
    left = [f"film {k}" for k in range(7)]
    assert {name for name, _ in ranker.for_user("u1").items} == {*left}
    (block,) = ranker.for_users(["u1", "nobody"], exclude=["film 3"])
    assert {*block.item.tolist()} == {*left} - {"film 3"}
    assert "film 3" in [name for name, _ in ranker.for_user("u1").items], "only in that call"
    assert {name for name, _ in ranker.for_items({"film 8": None}, exclude=left[2:]).items} == {*left[:2]}
    ranker.allow(["film 1", "film 2", "film 7"])
    assert {name for name, _ in ranker.for_user(42, exclude=["film 2"]).items} == {"film 1"}
    assert ranker.for_user(42, 2, exclude=["film 2"]).notes == ("1 item, not 2: no other may be recommended",)
    with pytest.raises(UsageError, match="'film 77' is not among the 9 items"):
        ranker.for_user(42, exclude=["film 77"])


def test_a_user_without_a_row_in_the_model_may_have_items_too() -> None:
    model = model_of(BprFactorization)
    had = Had.of(USERS, {"user": np.array([USERS + 1, 0]), "item": np.array([4, 2])}, ["last year's", 99])
    ranker = ItemRanker(model, *NAMES, had)
    popular = [f"film {k}" for k in model.item_appeal().argsort(descending=True)]
    for user in (99, "99", "99.0"):
        assert [name for name, _ in ranker.for_user(user).items] == [name for name in popular if name != "film 4"]
    assert [name for name, _ in ranker.for_user("nobody").items] == popular
    (block,) = ranker.for_users(["nobody", 99, "u0"])
    assert len(block.item) == 3 * ITEMS - 2


@pytest.mark.parametrize("user", [42, 42.0, "42", " 42 ", "42.0", np.float32(42)])
def test_an_id_is_the_same_however_it_is_written(user: Any, caplog: pytest.LogCaptureFixture) -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert ranker.for_user(user) == ranker.for_user(42) and ranker.for_user(user).notes == ()
    (block,) = ranker.for_users([user], top=3)
    assert not caplog.records
    assert block.item.tolist() == [name for name, _ in ranker.for_user(42, top=3).items]


def test_unknown_users_of_many_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    ranker = ItemRanker(model_of(BprFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert [*ranker.for_users([42, "nobody", "u33"], top=1)]
    assert [*ranker.for_users(["u33"], top=1)]
    assert [one.getMessage() for one in caplog.records] == [
        "2 of 3 users are not in the training data, such as 'nobody': they get the most popular items",
        "1 of 1 users are not in the training data, such as 'u33': they get the most popular items; did you mean 'u3'?",
    ]


def test_never_more_items_than_there_are(caplog: pytest.LogCaptureFixture) -> None:
    ranker = ItemRanker(model_of(MatrixFactorization), *NAMES, Had.of(USERS, random_pairs()))
    assert len(ranker.for_user("nobody").items) == ITEMS, "the default is 10, or all"
    assert ranker.for_user("nobody").notes == (UNKNOWN.format(user="'nobody'", near=""),), "nobody asked for ten"
    (few,) = ranker.for_user("u4").notes
    assert ranker.for_user("u4", ITEMS).items == [] and few == "0 items, not 10: no other may be recommended"
    found = ranker.for_user("u2", 1234)
    assert len(found.items) == ITEMS and found.notes == (f"{ITEMS} items, not 1,234: no other may be recommended",)
    (block,) = ranker.for_users(["u2", "u4"], ITEMS + 1)
    assert len(block.item) == ITEMS and [one.getMessage() for one in caplog.records] == [
        f"{ITEMS} items, not {ITEMS + 1}: no other may be recommended"
    ]
    ranker.allow(["film 7", "film 1"])
    assert {name for name, _ in ranker.for_user("nobody").items} == {"film 7", "film 1"}
    assert {name for name, _ in ranker.for_items({"film 7": 4.0}).items} == {"film 1"}
    for wrong in (0, -1, 2.0):
        with pytest.raises(UsageError, match="top must be a whole number >= 1"):
            ranker.for_user(1, top=wrong)  # type: ignore[arg-type]
    assert len(ranker.for_user("nobody", 3).items) == 2
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


ENTITIES, RELATIONS = [f"e{number}" for number in range(9)], ["likes", 7]
GRAPH_NAMES: dict[str, list[Any]] = {"entities": [*ENTITIES], "relations": RELATIONS}


def graph_model(kind: Any, reciprocal: bool) -> Any:
    torch.manual_seed(1)
    model = kind(9, 2, dim=6, reciprocal=reciprocal, init_scale=1.0)
    torch.nn.init.normal_(model.relations.weight)
    return model.eval()


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("kind", [ComplEx, DistMult, RotatE, TransE])
def test_answers_are_ordered_by_the_scores_that_training_gives_them(kind: Any, reciprocal: bool) -> None:
    model = graph_model(kind, reciprocal)
    known = np.array([[3, 1, 0], [3, 1, 8], [2, 1, 0], [3, 0, 1], [8, 1, 3]], np.int32)
    for side, question, left_out in ((0, ("e3", "7", None), {0, 8}), (1, (None, 7, "e0"), {2, 3})):
        own = 3 if side == 0 else 0
        asked = torch.tensor([[own, 1, own]])
        with torch.no_grad():
            scores = model.scores(asked, torch.arange(9))[0, side, 1:].tolist()
        wanted = sorted(({*range(9)} - left_out) - {own}, key=lambda place: -scores[place])
        found = complete(model, GRAPH_NAMES, *question, top=9, triples=known)
        others = [name for name, _ in found.items if name != f"e{own}"]  # a drawn right answer has no score there
        assert others == [f"e{place}" for place in wanted] and found.notes == ()
        assert len(found.items) == 7
        for name, score in found.items:
            assert name == f"e{own}" or score == pytest.approx(scores[ENTITIES.index(name)], abs=1e-5)
        assert complete(model, GRAPH_NAMES, *question, top=2, triples=known).items == found.items[:2]
        everything = complete(model, GRAPH_NAMES, *question, top=99)
        assert len(everything.items) == 9 and everything.notes == (WITH_KNOWN,)


def test_vectors_of_relations_are_those_from_head_to_tail() -> None:
    model = graph_model(ComplEx, True)
    assert model.vectors().shape == (9, 6) and model.vectors("relations").shape == (2, 6)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (("e1", "likes", "e2"), "either a head or a tail"),
        ((None, "likes", None), "either a head or a tail"),
        (("e1", None, None), "a question has a relation"),
        (("e77", "likes", None), r"'e77' is not among the 9 entities; did you mean 'e7'"),
        ((None, "like", "e1"), r"'like' is not among the 2 relations; did you mean 'likes'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(question: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        complete(graph_model(ComplEx, True), GRAPH_NAMES, *question)
    with pytest.raises(UsageError, match="Linear cannot score entities"):
        complete(torch.nn.Linear(1, 1), GRAPH_NAMES, "e1", "likes", None)


@pytest.mark.whole
@pytest.mark.processes
def test_a_run_completes_triples_and_knows_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """Entity k + 1 follows entity k on a ring of 20; one link is kept back."""
    pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
    monkeypatch.chdir(tmp_path)
    steps = [(k, step) for step in (1, 2, 3) for k in range(20)]
    lines = [f"{k}\tplus {step}\t{(k + step) % 20}" for k, step in steps if (k, step) != (4, 2)]
    (tmp_path / "ring.txt").write_text("\n".join(lines) + "\n")
    job = {
        "model": {"class_path": "hogwild.models.RotatE", "init_args": {"dim": 16, "negatives": 16, "init_scale": 0.1}},
        "loss": {"class_path": "hogwild.losses.SoftmaxLoss"},
        "optimizer": {"class_path": "hogwild.optimizers.RowWiseAdagrad", "init_args": {"lr": 0.2}},
        "data": {"train": {"class_path": "hogwild.data.Triples", "init_args": {"path": "ring.txt"}}, "batch_size": 64},
        "train": {"procs": 0, "epochs": 100},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    status, _, words = say("train", "job.yaml", "--run-dir", "run", "--no-progress")
    assert status == 0, words
    trained = hogwild.load("run")
    status, lines, _ = say("complete", "run", "--head", "4", "--relation", "plus 2", "--top", "1", "--json")
    assert status == 0 and json.loads(lines[0])["answers"][0][0] == 6
    answer = trained.complete("4", "plus 2", None, top=3)
    assert answer.items[0][0] == 6 and answer.notes == ()
    assert trained.complete(None, "plus 2", 6, top=1).items[0][0] == 4
    assert 5 not in [name for name, _ in trained.complete(4, "plus 1", None, top=20).items]
    entities = trained.vectors_of("entities")
    assert len(entities.most_similar("4", topn=3)) == 3 and len(trained.vectors_of("relations")) == 3
    with pytest.raises(UsageError, match="its model has no vectors of words; it has entities, relations"):
        trained.vectors  # noqa: B018
    with pytest.raises(UsageError, match="its model has no users and items"):
        trained.recommend("4")
    shutil.move("ring.txt", "elsewhere.txt")
    for folder in Path().glob("**/cache"):
        shutil.rmtree(folder)
    answer = hogwild.load("run").complete(4, "plus 1", None, top=20)
    assert 5 not in [name for name, _ in answer.items] and answer.notes == ()
    for known in Path("run").glob("**/known.npz"):
        known.unlink()
    answer = hogwild.load("run").complete(4, "plus 1", None, top=1)
    assert answer.items[0][0] == 5 and answer.notes == (WITH_KNOWN,)
