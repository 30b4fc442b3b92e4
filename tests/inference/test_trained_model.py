"""A run's model put to use: similar, recommend, by command and from Python."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.data import Clicks, key_of
from hogwild.errors import UsageError
from hogwild.inference.trained_model import Trained
from hogwild.losses import LogisticLoss
from hogwild.models import FieldFactorizationMachine
from hogwild.nn import NamedEmbedding
from hogwild.parameters import state_dicts
from hogwild.parameters.optimizer_state import Copies
from hogwild.storage import checkpoint
from tests.helpers.jobs import Ended, in_turn
from tests.helpers.predicting import Say

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")


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


def test_recommend_as_json_and_for_somebody_new(runs: Mapping[str, Ended], say: Say) -> None:
    status, lines, _ = say("recommend", runs["ratings"].run_dir, "--user", "eve", "--top", 2, "--json")
    answer = json.loads(lines[0])
    assert status == 0 and answer["user"] == "eve" and len(answer["items"]) == 2
    scores = [score for _, score in answer["items"]]
    assert scores == sorted(scores, reverse=True)
    _, lines, _ = say("recommend", runs["ratings"].run_dir, "--user", "eve")
    assert "'eve' is not in the training data" in lines[0]


def test_who_has_what_travels_with_the_checkpoint_and_without_it_nothing_is_recommended(
    runs: Mapping[str, Ended], say: Say, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = shutil.copytree(runs["ratings"].run_dir, tmp_path / "run", symlinks=True)
    resolved = there / "resolved.yaml"
    resolved.write_text(resolved.read_text().replace("ratings.csv", "gone.csv"))
    (alone,) = (one for one in (there / "checkpoints").iterdir() if not one.is_symlink())
    assert (there / "known.npz").stat().st_size < 2500
    (there / "known.npz").unlink()
    status, lines, _ = say("recommend", alone, "--user", "bob")
    assert status == 0 and [line.split()[1] for line in lines] == ["play"]
    (alone / "known.npz").unlink()
    for more in (["--user", "bob"], ["--users", "all"], ["--rated", "film=3"]):
        status, lines, words = say("recommend", there, *more)
        assert status == 1 and not lines and "known.npz" in words and "--had FILE" in words
    (tmp_path / "had.csv").write_text("item,user\nfilm,bob\nplay,bob\nfilm,eve\nnovelty,eve\n")
    had = tmp_path / "had.csv"
    for run, user, wanted in (
        (there, "bob", {"song", "book", "game"}),
        (there, "eve", {*ITEMS} - {"film"}),
        (runs["ratings"].run_dir, "bob", set()),
        (runs["ratings"].run_dir, "dan", {item for item in ITEMS if ("dan", item) not in RATED}),
    ):
        status, lines, words = say("recommend", run, "--user", user, "--had", had, "--json")
        assert status == 0 and {item for item, _ in json.loads(lines[0])["items"]} == wanted, words
    assert "had: 1 of its 3 items have no name that the model knows" in caplog.text
    pairs = [("bob", "film"), ("eve", "novelty")]
    (found,) = hogwild.load(there).ranker(had=pairs).for_users(["bob"])
    assert {*found.item.tolist()} == {*ITEMS} - {"film"}


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


def test_more_than_there_are_is_all_of_them_with_a_note(runs: Mapping[str, Ended], say: Say) -> None:
    for command, arguments, what in (
        ("recommend", ("--rated", "film=3"), "no other may be recommended"),
        ("similar", ("film",), "there are no others"),
    ):
        status, lines, _ = say(command, runs["ratings"].run_dir, *arguments, "--top", 600)
        assert status == 0 and len(lines) == len(ITEMS) and lines[0].endswith(f", not 600: {what}")
        _, lines, _ = say(command, runs["ratings"].run_dir, *arguments, "--top", 600, "--json")
        assert json.loads(lines[0])["notes"][0].endswith(what)
    status, lines, _ = say("similar", runs["ratings"].run_dir, "film")
    assert len(lines) == len(ITEMS) - 1, "nobody asked for ten"


@pytest.mark.parametrize(
    ("command", "run", "arguments", "status", "said"),
    [
        ("similar", "words", ["kong"], 2, "king"),
        ("similar", "rows", ["king"], 2, "its model has no vectors of words"),
        ("recommend", "rows", ["--user", "1"], 2, "no users and items"),
        ("recommend", "ratings", ["--user", "bob", "--top", "0"], 2, "top"),
        ("recommend", "ratings", ["--user", "bob", "--users", "all"], 2, "one of the three"),
        ("recommend", "ratings", [], 2, "one of the three"),
        ("recommend", "ratings", ["--user", "bob", "--out", "x.csv"], 2, "--out is for --users"),
        ("recommend", "ratings", ["--users", "missing.txt"], 1, "missing.txt: cannot be read: No such file"),
        ("recommend", "ratings", ["--users", "all", "--out", "x.npz"], 2, "must end in .csv or .parquet"),
        ("recommend", "ratings", ["--user", "bob", "--had", "missing.csv"], 3, "missing.csv"),
        ("recommend", "ratings", ["--user", "bob", "--had", os.devnull], 3, "/dev/null"),
        ("recommend", "ratings", ["--user", "bob", "--exclude", "fim"], 2, "did you mean 'film'"),
        ("recommend", "ratings", ["--rated", "fim=3"], 2, "did you mean 'film'"),
        ("recommend", "ratings", ["--rated", "film=much"], 2, "'much' is not a number"),
        ("recommend", "ratings", ["--rated", "film"], 2, "needs the rating of each item"),
        ("recommend", "ratings", ["--rated", "film=nan"], 2, "the rating of item 1 is nan: it must be finite"),
        ("recommend", "ratings", ["--rated", "film=1", "--rated", "film=5"], 2, "'film' is given twice"),
        ("recommend", "ratings", ["--rated", "film=1", "--rated", " film=5"], 2, "'film' and ' film' are one item"),
        ("similar", "ratings", ["film", "--kind", "words"], 2, "no vectors of words; it has items, users"),
        ("similar", "ratings", ["fim"], 2, "'fim' is not among the 5 items; did you mean 'film'?"),
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


class Grown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = NamedEmbedding(3, 8)


def test_a_table_that_grew_is_asked_for_by_the_names_that_its_run_has_met(tmp_path: Path) -> None:
    trained, names = Grown(), ["ann", 7, "bob"]
    with torch.no_grad():
        rows = trained.users.rows_of(torch.tensor([*map(key_of, names)]), claim=True)
        trained.users.weight[rows] = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 1, 0]])
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "names.jsonl").write_text(json.dumps([key_of("ann"), "ann"]) + "\n")
    path = checkpoint.write(folder, "update-000000001", state_dicts.model_state(trained, Copies()), {}, {})
    described = job(model={"class_path": f"{__name__}.Grown"}, data={"train": {"class_path": "hogwild.data.Digits"}})
    (tmp_path / "job.yaml").write_text(described)
    found = Trained.of(load_job(tmp_path / "job.yaml"), path)
    assert {*found.table("users").names} == {"ann", 7, key_of("bob")}
    assert [name for name, _ in found.similar("ann")] == [str(key_of("bob")), "7"]
    with pytest.raises(UsageError, match="no vectors of items; it has users"):
        found.similar("ann", kind="items")


def test_load_of_nothing_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(hogwild.HogwildError):
        hogwild.load(tmp_path / "nothing")
    assert issubclass(UsageError, hogwild.HogwildError)


X = torch.linspace(-1, 1, 48).reshape(16, 3)


class Small(nn.Module):
    """Can be built without arguments."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def train(model: nn.Module, run: Path) -> Path:
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, TensorDataset(X, X[:, :1]), nn.MSELoss(), rule, procs=0, batch_size=8, run_dir=run)
    model.eval()
    return run


def test_a_class_that_needs_no_argument_is_built_and_its_defaults_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Small()
    run = train(model, tmp_path / "run")
    loaded = hogwild.load(run)
    torch.testing.assert_close(loaded.predict(TensorDataset(X)), model(X).detach())  # in blocks of other sizes
    assert loaded.model is not model
    assert "Small is built with the defaults of its arguments (hidden)" in caplog.text


def test_a_model_that_cannot_be_built_is_the_callers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 1))
    run = train(model, tmp_path / "run")
    mine = nn.Sequential(nn.Linear(3, 1))
    loaded = hogwild.load(run, model=mine)
    assert loaded.model is mine
    torch.testing.assert_close(loaded.predict(TensorDataset(X)), model(X).detach())


@pytest.mark.parametrize("model", [Small(hidden=8), nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 1))])
def test_a_model_with_arguments_asks_for_an_object(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Linear fails without its sizes; the other two are built, with other tensors."""
    run = train(model, tmp_path / "run")
    with pytest.raises(hogwild.HogwildError, match=r"hogwild\.load\(RUN, model=…\)") as raised:
        hogwild.load(run)
    assert raised.value.code == "usage/needs-model" and type(model).__qualname__ in str(raised.value)
    assert main.run(["predict", str(run), "x.npz"]) == 2 and "model=…" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "code"), [(nn.Linear(3, 2), "run/other-model"), (Small, "model/not-a-module")])
def test_an_object_that_does_not_fit_is_refused(given: nn.Module, code: str, tmp_path: Path) -> None:
    run = train(nn.Linear(3, 1), tmp_path / "run")
    with pytest.raises(hogwild.HogwildError, match="model=") as raised:
        hogwild.load(run, model=given)
    assert raised.value.code == code


CLICKS = "clicked;site;price\n" + "".join(f"{k % 2};{'ab'[k % 2]};{k % 7}\n" for k in range(40))


def learn_clicks(table: Path, run: Path, **more: Any) -> FieldFactorizationMachine:
    data = Clicks(table, target="clicked", delimiter=";", buckets={"price": [2, 4]}, min_count=2)
    torch.manual_seed(0)
    model = FieldFactorizationMachine(features=7, fields=2)
    rule = torch.optim.Adagrad(model.parameters(), lr=0.3)
    where = {"resume": run} if "resume" in more else {"run_dir": run}
    hogwild.train(model, data, LogisticLoss(), rule, procs=0, epochs=more.get("epochs", 3), **where)
    return model


def test_a_run_of_clicks_reads_files_like_the_ones_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their delimiter, buckets and target are arguments of an object; the run is resumed with the file elsewhere."""
    (tmp_path / "clicks.csv").write_text(CLICKS)
    model = learn_clicks(tmp_path / "clicks.csv", tmp_path / "run")
    ask = tmp_path / "ask.csv"
    ask.write_text("price;site\n1;a\n1;b\n;c\n")
    no, yes, other = hogwild.load(tmp_path / "run").predict(str(ask)).tolist()
    assert no < 0.2 and yes > 0.8 and no < other < yes
    mine = hogwild.load(tmp_path / "run", model=FieldFactorizationMachine(7, 2)).predict(str(ask))
    assert mine.tolist() == [no, yes, other]
    assert main.run(["predict", str(tmp_path / "run"), str(ask), "--out", str(tmp_path / "out.csv")]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4
    (tmp_path / "clicks.csv").rename(tmp_path / "moved.csv")
    longer = learn_clicks(tmp_path / "moved.csv", tmp_path / "run", epochs=5, resume=True)
    assert not torch.equal(longer.weight, model.weight)
    (tmp_path / "moved.csv").write_text(CLICKS.replace("0;a;0", "1;a;0"))
    with pytest.raises(hogwild.HogwildError, match=r"data\.train"):
        learn_clicks(tmp_path / "moved.csv", tmp_path / "run", epochs=6, resume=True)


def test_what_a_data_set_was_given_is_recorded_as_a_job_file_could_say_it(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text(CLICKS)
    data = Clicks(tmp_path / "clicks.csv", "clicked", buckets={2: (np.float64(2), 4.0)}, delimiter=";")
    assert data.init_args == {
        "path": str(tmp_path / "clicks.csv"), "target": "clicked", "buckets": {2: [2.0, 4.0]}, "delimiter": ";"
    }  # fmt: skip
