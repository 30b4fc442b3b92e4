"""Missing links of a knowledge graph: the best tails and heads, without the known ones, and neighbours of entities."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hogwild
from hogwild.errors import UsageError
from hogwild.inference.recommend import WITH_KNOWN, complete
from hogwild.models import ComplEx, DistMult, RotatE, TransE
from tests.helpers.predicting import Say

ENTITIES, RELATIONS = [f"e{number}" for number in range(9)], ["likes", 7]
NAMES: dict[str, list[Any]] = {"entities": [*ENTITIES], "relations": RELATIONS}


def model_of(kind: Any, reciprocal: bool) -> Any:
    torch.manual_seed(1)
    model = kind(9, 2, dim=6, reciprocal=reciprocal, init_scale=1.0)
    torch.nn.init.normal_(model.relations.weight)
    return model.eval()


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("kind", [ComplEx, DistMult, RotatE, TransE])
def test_answers_are_ordered_by_the_scores_that_training_gives_them(kind: Any, reciprocal: bool) -> None:
    model = model_of(kind, reciprocal)
    known = np.array([[3, 1, 0], [3, 1, 8], [2, 1, 0], [3, 0, 1], [8, 1, 3]], np.int32)
    for side, question, left_out in ((0, ("e3", "7", None), {0, 8}), (1, (None, 7, "e0"), {2, 3})):
        own = 3 if side == 0 else 0
        asked = torch.tensor([[own, 1, own]])
        with torch.no_grad():
            scores = model.scores(asked, torch.arange(9))[0, side, 1:].tolist()
        wanted = sorted(({*range(9)} - left_out) - {own}, key=lambda place: -scores[place])
        found = complete(model, NAMES, *question, top=9, triples=known)
        others = [name for name, _ in found.items if name != f"e{own}"]  # a drawn right answer has no score there
        assert others == [f"e{place}" for place in wanted] and found.notes == ()
        assert len(found.items) == 7
        for name, score in found.items:
            assert name == f"e{own}" or score == pytest.approx(scores[ENTITIES.index(name)], abs=1e-5)
        assert complete(model, NAMES, *question, top=2, triples=known).items == found.items[:2]
        everything = complete(model, NAMES, *question, top=99)
        assert len(everything.items) == 9 and everything.notes == (WITH_KNOWN,)


def test_vectors_of_relations_are_those_from_head_to_tail() -> None:
    model = model_of(ComplEx, True)
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
        complete(model_of(ComplEx, True), NAMES, *question)
    with pytest.raises(UsageError, match="Linear cannot score entities"):
        complete(torch.nn.Linear(1, 1), NAMES, "e1", "likes", None)


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
    answer = hogwild.load("run").complete(4, "plus 1", None, top=1)
    assert answer.items[0][0] == 5 and answer.notes == (WITH_KNOWN,)
