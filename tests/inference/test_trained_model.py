"""A run's model put to use: similar, recommend, by command and from Python."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.config.load import load_job
from hogwild.errors import UsageError
from hogwild.inference.trained_model import Trained
from hogwild.parameters import state_dicts
from hogwild.parameters.optimizer_state import Copies
from hogwild.storage import checkpoint
from tests.helpers.jobs import Ended, in_turn
from tests.helpers.predicting import Say

pytestmark = pytest.mark.processes

RULE = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}}
USERS, ITEMS = ("ann", "bob", "cid", "dan"), ("film", "song", "book", "play", "game")
RATED = [(user, item) for u, user in enumerate(USERS) for i, item in enumerate(ITEMS) if (u + i) % 4]


def job(**sections: object) -> str:
    common = {"train": {"procs": 0, "epochs": 40}, "optimizer": RULE, "log": {"tensorboard": False}}
    return json.dumps(common | sections)  # JSON is YAML


@pytest.fixture(scope="module")
def runs(jobs_folder: Path) -> Mapping[str, Ended]:
    """A model of ratings, one of sparse rows, one of words."""
    folder = jobs_folder / "files"
    folder.mkdir()
    lines = [f"{user},{item},{1 + (3 * USERS.index(user) + 5 * ITEMS.index(item)) % 5}" for user, item in RATED]
    (folder / "ratings.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    (folder / "rows.svm").write_text("".join(f"{'+1' if k % 2 else '-1'} {1 + k % 2}:1 3:0.5\n" for k in range(40)))
    (folder / "text.txt").write_text("the king and the queen\nthe man and the woman\n" * 200)
    (folder / "ratings.yaml").write_text(
        job(
            model={"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 4}},
            loss={"class_path": "torch.nn.MSELoss"},
            data={
                "train": {"class_path": "hogwild.data.Ratings", "init_args": {"path": "ratings.csv"}},
                "batch_size": 8,
            },
        )
    )
    (folder / "rows.yaml").write_text(
        job(
            model={"class_path": "hogwild.models.SparseLinear"},
            loss={"class_path": "hogwild.losses.LogisticLoss"},
            data={"train": {"class_path": "hogwild.data.LibSvm", "init_args": {"path": "rows.svm"}}, "batch_size": 8},
        )
    )
    (folder / "words.yaml").write_text(
        job(
            model={"class_path": "hogwild.models.SkipGram", "init_args": {"dim": 8, "sample": 0}},
            loss={"class_path": "hogwild.losses.NegativeSampling"},
            data={"train": {"class_path": "hogwild.data.Text", "init_args": {"path": "text.txt"}}, "batch_size": 512},
            train={"procs": 0, "epochs": 3},
        )
    )
    ended = in_turn(
        jobs_folder / "jobs", {name: [str(folder / f"{name}.yaml")] for name in ("ratings", "rows", "words")}
    )
    for one in ended.values():
        assert one.status == 0 and one.summary["update"] == "fused", one.stderr
    return ended


@pytest.mark.whole
def test_recommend_names_the_best_items_without_those_the_user_has_rated(runs: Mapping[str, Ended], say: Say) -> None:
    run = runs["ratings"].run_dir
    status, lines, _ = say("recommend", run, "--user", "bob", "--top", 3)
    assert status == 0
    assert [line.split()[1] for line in lines] == ["play"], "bob has rated the four others"
    trained = hogwild.load(run)
    everything = trained.model(torch.full((5,), trained.names["users"].index("bob")), torch.arange(5)).detach()
    assert float(lines[0].split()[0]) == pytest.approx(
        float(everything[trained.names["items"].index("play")]), abs=1e-3
    )


def test_what_the_run_has_parsed_is_not_parsed_again(
    runs: Mapping[str, Ended], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr("hogwild.data.ratings._RatingsParsing.parse", parse)
    status, lines, _ = say("recommend", runs["ratings"].run_dir, "--user", "bob")
    assert status == 0 and [line.split()[1] for line in lines] == ["play"]


def test_recommend_as_json_and_for_somebody_new(runs: Mapping[str, Ended], say: Say) -> None:
    status, lines, _ = say("recommend", runs["ratings"].run_dir, "--user", "eve", "--top", 2, "--json")
    answer = json.loads(lines[0])
    assert status == 0 and answer["user"] == "eve" and len(answer["items"]) == 2
    scores = [score for _, score in answer["items"]]
    assert scores == sorted(scores, reverse=True)
    _, lines, _ = say("recommend", runs["ratings"].run_dir, "--user", "eve")
    assert "eve is not in the training data" in lines[0]


def test_recommend_says_that_rated_items_may_be_among_them_where_the_data_is_gone(
    runs: Mapping[str, Ended], say: Say, tmp_path: Path
) -> None:
    import shutil

    there = shutil.copytree(runs["ratings"].run_dir, tmp_path / "run", symlinks=True)
    resolved = there / "resolved.yaml"
    resolved.write_text(resolved.read_text().replace("ratings.csv", "gone.csv"))
    status, lines, _ = say("recommend", there, "--user", "bob")
    assert status == 0 and "may be included" in lines[0] and len(lines) == 1 + len(ITEMS)


def test_recommend_to_many(
    runs: Mapping[str, Ended], say: Say, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, out = runs["ratings"].run_dir, tmp_path / "items.parquet"
    status, lines, _ = say("recommend", run, "--users", "all", "--out", out)
    assert status == 0
    table = pyarrow.parquet.read_table(out).to_pydict()
    assert [*table] == ["user", "rank", "item", "score"] and lines == [f"{len(table['user'])} recommendations: {out}"]
    own = [*zip(table["user"], table["item"], strict=True)]
    assert len({*own}) == len(own) and {*own} == {(u, i) for u in USERS for i in ITEMS} - {*RATED}
    (tmp_path / "some.txt").write_text("dan\n\neve\n")
    (tmp_path / "allowed.txt").write_text("song\ngame\n")
    some, allowed = tmp_path / "some.txt", tmp_path / "allowed.txt"
    status, lines, _ = say("recommend", run, "--users", some, "--filter", allowed, "--top", "2")
    assert status == 0 and "1 of 2 users are not in the training data" in caplog.text
    assert lines[0] == "user,rank,item,score"
    assert {tuple(line.split(",")[:3:2]) for line in lines[1:]} == {("eve", "song"), ("eve", "game"), ("dan", "song")}


def test_recommend_to_somebody_new(runs: Mapping[str, Ended], say: Say) -> None:
    run = runs["ratings"].run_dir
    status, lines, _ = say("recommend", run, "--rated", "film=5", "--rated", "book=1", "--json")
    answer = json.loads(lines[0])
    assert status == 0 and answer["rated"] == ["film=5", "book=1"]
    assert {item for item, _ in answer["items"]} == {"song", "play", "game"}


@pytest.mark.whole
def test_similar_names_the_nearest_words_and_items(runs: Mapping[str, Ended], say: Say) -> None:
    status, lines, _ = say("similar", runs["words"].run_dir, "king", "--top", 3)
    assert status == 0 and len(lines) == 3
    words = {line.split()[1] for line in lines}
    assert words < {"the", "and", "queen", "man", "woman"}
    trained = hogwild.load(runs["words"].run_dir)
    assert len(trained.vectors) == 6
    status, lines, _ = say("similar", runs["words"].run_dir, "king", "woman", "--minus", "man", "--json")
    wanted = trained.vectors.most_similar(["king", "woman"], ["man"])
    assert json.loads(lines[0])["similar"] == [[word, pytest.approx(cosine)] for word, cosine in wanted]
    status, lines, _ = say("similar", runs["ratings"].run_dir, "film")
    assert {line.split()[1] for line in lines} == {*ITEMS} - {"film"}
    status, lines, _ = say("similar", runs["ratings"].run_dir, "bob", "--kind", "users")
    assert {line.split()[1] for line in lines} == {*USERS} - {"bob"}


@pytest.mark.parametrize(
    ("command", "run", "arguments", "status", "said"),
    [
        ("similar", "words", ["kong"], 2, "king"),
        ("similar", "rows", ["king"], 2, "its model has no vectors of words"),
        ("recommend", "rows", ["--user", "1"], 2, "no users and items"),
        ("recommend", "ratings", ["--user", "bob", "--top", "0"], 2, "top"),
        ("recommend", "ratings", ["--user", "bob", "--top", "6"], 2, "top 6 is more than the 5 items"),
        ("recommend", "ratings", ["--user", "bob", "--users", "all"], 2, "one of the three"),
        ("recommend", "ratings", [], 2, "one of the three"),
        ("recommend", "ratings", ["--user", "bob", "--out", "x.csv"], 2, "--out is for --users"),
        ("recommend", "ratings", ["--users", "missing.txt"], 1, "missing.txt: cannot be read: No such file"),
        ("recommend", "ratings", ["--users", "all", "--out", "x.npz"], 2, "must end in .csv or .parquet"),
        ("recommend", "ratings", ["--rated", "fim=3"], 2, "did you mean 'film'"),
        ("recommend", "ratings", ["--rated", "film=much"], 2, "'much' is not a number"),
        ("recommend", "ratings", ["--rated", "film"], 2, "needs the rating of each item"),
        ("recommend", "ratings", ["--rated", "film=nan"], 2, "the rating of item 1 is nan: it must be finite"),
        ("recommend", "ratings", ["--rated", "film=1", "--rated", "film=5"], 2, "'film' is given twice"),
        ("recommend", "ratings", ["--rated", "film=1", "--rated", " film=5"], 2, "film and  film are one item"),
        ("similar", "ratings", ["film", "--kind", "words"], 2, "no vectors of words; it has items, users"),
        ("similar", "ratings", ["fim"], 2, "'fim' is not among the 5 items; similar: film"),
        ("similar", "words", ["king", "--which", "newest"], 2, "--which newest"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    command: str, run: str, arguments: list[str], status: int, said: str, runs: Mapping[str, Ended], say: Say
) -> None:
    found, _, words = say(command, runs[run].run_dir, *arguments)
    assert found == status and said in words and "Traceback" not in words


def test_a_model_that_was_changed_since_does_not_take_the_checkpoint(
    runs: Mapping[str, Ended], say: Say, tmp_path: Path
) -> None:
    import shutil

    there = shutil.copytree(runs["ratings"].run_dir, tmp_path / "run", symlinks=True)
    resolved = there / "resolved.yaml"
    resolved.write_text(resolved.read_text().replace("factors: 4", "factors: 5"))
    status, _, words = say("recommend", there, "--user", "bob")
    assert status == 1 and "does not fit hogwild.models.MatrixFactorization" in words


class Renames(torch.nn.Linear):
    """Saves itself under other names, and no load knows them."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(w=state.pop("weight")))


def test_a_model_whose_state_dict_is_its_own_is_loaded_with_the_tensors_that_were_trained(tmp_path: Path) -> None:
    trained = Renames()
    parts = state_dicts.model_state(trained, Copies())
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    path = checkpoint.write(folder, "update-000000001", parts, {}, {})
    described = job(model={"class_path": f"{__name__}.Renames"}, data={"train": {"class_path": "hogwild.data.Digits"}})
    (tmp_path / "job.yaml").write_text(described)
    found = Trained.of(load_job(tmp_path / "job.yaml"), path).model
    assert torch.equal(found.weight, trained.weight) and torch.equal(found.bias, trained.bias)


def test_load_of_nothing_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(hogwild.HogwildError):
        hogwild.load(tmp_path / "nothing")
    assert issubclass(UsageError, hogwild.HogwildError)
