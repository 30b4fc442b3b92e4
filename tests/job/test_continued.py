"""A run that goes on with another run's model on data that has grown: every row keeps its name, values and optimizer
state."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.config.schema import Component, InitFrom
from hogwild.errors import DataError, HogwildError
from hogwild.feeds.packed import Packed
from hogwild.job.data import names_of
from hogwild.job.initial_values import known_names, load_initial
from hogwild.job.row_names import KnownNames
from hogwild.models.skipgram import pieces_of
from hogwild.storage import checkpoint
from hogwild.storage.checkpoint_format import checkpoint_name
from hogwild.user_code import build
from tests.job.conftest import Say
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

# ---- random runs ----------------------------------------------------------------------------------------------------

NAMES = [f"n{number}" for number in range(12)]


def rated(names: Mapping[str, Sequence[str]]) -> Packed:
    """One rating of each user and of each item."""
    users, items = (len(names[kind]) for kind in ("users", "items"))
    arrays = {
        "user": np.arange(max(users, items), dtype=np.int32) % users,
        "item": np.arange(max(users, items), dtype=np.int32) % items,
        "rating": np.ones(max(users, items), np.float32),
    }
    return Packed.of("data.train", "table", arrays, {"users": users, "items": items}, dict(names))


def written(run: Path, model: Any, optimizer: Any, names: dict[str, Any]) -> None:
    """Write the run's names and a checkpoint of it, as a job does."""
    run.mkdir()
    (run / "names.json").write_text(json.dumps(names))
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "optimizer_names": [name for name, _ in model.named_parameters()],
    }
    checkpoint.write(run / "checkpoints", checkpoint_name(1), state, model.state_dict(), {})


@pytest.mark.parametrize("gone", ["keep", "drop", 1, 2])
def test_no_row_changes_its_name_its_values_or_its_state_over_any_number_of_runs(gone: Any, tmp_path: Path) -> None:
    component = Component(class_path="hogwild.models.MatrixFactorization", init_args={"factors": 3, "mean": 0.0})
    most = {"keep": 99, "drop": 0}.get(gone, gone)
    rng = random.Random(str(gone))
    for life in range(12):
        rows: dict[tuple[str, str], tuple[Tensor, Tensor, int]] = {}  # (kind, name) -> values, state, runs unseen
        for number in range(6):
            drawn = {kind: rng.sample(NAMES, rng.randint(1, 9)) for kind in ("users", "items")}
            before = tmp_path / f"{life}-{number - 1}"
            known = known_names(InitFrom(path=str(before), gone=gone)) if number else KnownNames()
            packed, unseen = known.extend(rated(drawn))
            names = names_of(None, packed) or {}
            model = build(component, **packed.spec.sizes)
            optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.25)
            fresh = {name: value.clone() for name, value in model.state_dict().items()}
            if number:
                values = load_initial(model, str(before), names, component, unseen)
                note = values.give_state(model, optimizer)
                assert "optimizer state of 4 of 4 parameters is from there" in note
            for kind, table in (("users", model.user), ("items", model.item)):
                kept = {name for k, name in rows if k == kind and name not in drawn[kind] and rows[k, name][2] < most}
                assert names["names"][kind][: len(drawn[kind])] == drawn[kind]
                assert {*names["names"][kind][len(drawn[kind]) :]} == kept
                state = optimizer.state[table.weight]["sum"]
                for row, name in enumerate(names["names"][kind]):
                    new = (fresh[f"{kind[:-1]}.weight"][row], torch.full((3,), 0.25), 0)
                    value, sums, runs = rows.get((kind, name), new)
                    assert torch.equal(table.weight[row], value) and torch.equal(state[row], sums), (kind, name)
                    rows[kind, name] = (value.clone(), sums.clone(), runs + 1 if name in kept else 0)
                for name in [name for k, name in rows if k == kind and name not in names["names"][kind]]:
                    del rows[kind, name]
                with torch.no_grad():  # "training"
                    table.weight += torch.randn(table.weight.shape)
                    state += torch.rand(state.shape)
                    for row, name in enumerate(names["names"][kind]):
                        rows[kind, name] = (table.weight[row].clone(), state[row].clone(), rows[kind, name][2])
            written(tmp_path / f"{life}-{number}", model, optimizer, names | {"unseen": unseen})


# ---- whole jobs -----------------------------------------------------------------------------------------------------


def month(file: Path, users: Sequence[str], items: Sequence[str]) -> None:
    lines = [
        f"{user},{item},{1 + (3 * u + i) % 5}"
        for u, user in enumerate(users)
        for i, item in enumerate(items)
        if (u + i) % 3
    ]
    file.write_text("\n".join(["user,item,rating", *lines]) + "\n")


RATINGS = {
    "model": {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 3, "l2": 0.01}},
    "loss": {"class_path": "torch.nn.MSELoss"},
    "optimizer": {"class_path": "torch.optim.Adagrad", "init_args": {"lr": 0.05}},
    "data": {
        "train": {"class_path": "hogwild.data.Ratings", "init_args": {"path": "ratings.csv"}},
        "batch_size": 4,
        "shuffle": "none",
    },
    "train": {"procs": 0, "epochs": 2},
    "log": {"tensorboard": False},
}
USERS, ITEMS = [f"user {number}" for number in range(7)], [f"item {number}" for number in range(5)]


@pytest.fixture
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> Path:
    """A folder with a month of ratings, their job, and its run `one`."""
    monkeypatch.chdir(tmp_path)
    month(tmp_path / "ratings.csv", USERS, ITEMS)
    (tmp_path / "job.yaml").write_text(json.dumps(RATINGS))
    train(say, "one")
    return tmp_path


def train(say: Say, run: str, *more: str) -> str:
    status, said = say("train", "job.yaml", "--run-dir", run, "--no-progress", *more)
    assert status == 0, said
    return said


def state_of(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The newest checkpoint, and the names."""
    newest = (run / "checkpoints" / "latest").resolve()
    return checkpoint.load(newest), json.loads((newest / "names.json").read_text())


def rows_of(run: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Values and state of each user, and each item."""
    state, names = state_of(run)
    sums = dict(zip(state["optimizer_names"], state["optimizer"]["state"].values(), strict=True))
    found = {}
    for kind in ("user", "item"):
        table = f"{kind}.weight"
        for name, value, part in zip(
            names["names"][f"{kind}s"], state["model"][table], sums[table]["sum"], strict=True
        ):
            found[name] = (value, part)
    return found


@pytest.mark.parametrize("rule", ["torch.optim.Adagrad", "torch.optim.SGD"])
def test_a_run_continued_on_the_same_data_equals_a_resume(rule: str, ratings: Path, say: Say) -> None:
    """`shuffle: none`: the third epoch of a run has the order of another run's first."""
    train(say, "first", f"optimizer.class_path={rule}")
    train(say, "continued", "--continue", "first", "train.epochs=1", f"optimizer.class_path={rule}")
    status, said = say("train", "--resume", "first", "train.epochs=3", "--no-progress")
    assert status == 0, said
    assert_equal(ratings / "continued", ratings / "first")


def assert_equal(one: Path, other: Path) -> None:
    """The newest checkpoints have the same values and the same state."""
    (mine, _), (theirs, _) = state_of(one), state_of(other)
    assert all(torch.equal(mine["model"][name], value) for name, value in theirs["model"].items())
    for index, part in theirs["optimizer"]["state"].items():
        for key, value in part.items():
            if key != "step":  # nothing counts steps of a kernel
                assert torch.equal(mine["optimizer"]["state"][index][key], value), (index, key)


@pytest.mark.parametrize("rule", ["torch.optim.Adagrad", "hogwild.optimizers.FTRL"])
@pytest.mark.parametrize("model", ["SparseLinear", "FactorizationMachine", "FieldFactorizationMachine", "DeepFm"])
def test_clicks_continued_on_the_same_table_equal_a_resume(
    model: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """With weights, buckets, hashed and rare values."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{k % 2},{'abc'[k % 3]},{k % 5}.5,u{k % 11},{1 + k % 4}" for k in range(60)]
    (tmp_path / "clicks.csv").write_text("\n".join(["y,site,price,user,w", *lines, "1,once,,u1,2"]) + "\n")
    arguments = {"path": "clicks.csv", "target": "y", "buckets": {"price": 3}, "hash": {"user": 6}, "min_count": 2}
    job = RATINGS | {
        "model": {"class_path": f"hogwild.models.{model}"},
        "loss": {"class_path": "hogwild.losses.LogisticLoss"},
        "optimizer": {"class_path": rule, "init_args": {"lr": 0.1}},
        "data": {
            "train": {"class_path": "hogwild.data.Clicks", "init_args": arguments | {"weight": "w"}},
            "batch_size": 8,
            "shuffle": "none",
        },
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    train(say, "first")
    train(say, "continued", "--continue", "first", "train.epochs=1")
    status, said = say("train", "--resume", "first", "train.epochs=3", "--no-progress")
    assert status == 0, said
    assert_equal(tmp_path / "continued", tmp_path / "first")


def test_next_months_users_are_new_rows_and_last_months_are_kept(ratings: Path, say: Say) -> None:
    before = rows_of(ratings / "one")
    month(ratings / "ratings.csv", ["a new one", *USERS[2:]], [*ITEMS[1:], "novelty"])
    said = train(say, "two", "--continue", "one", "optimizer.init_args.lr=0.0", "train.epochs=1")
    assert "users by name: 5 kept, 2 kept that the data lacks, 1 new, 0 gone" in said
    assert "items by name: 4 kept, 1 kept that the data lacks, 1 new, 0 gone" in said
    after = rows_of(ratings / "two")
    assert after.keys() - before.keys() == {"a new one", "novelty"} and before.keys() <= after.keys()
    for name, (value, sums) in before.items():
        assert torch.equal(after[name][0], value), name
        is_in_data = name in USERS[2:] or name in ITEMS[1:]
        assert torch.equal(after[name][1], sums) == (not is_in_data), name  # the sums of the others grew
    assert not torch.equal(after["novelty"][1], torch.zeros(3)) and (after["novelty"][1] < after["item 2"][1]).all()
    assert recommended("two", USERS[0]) == {"item 3", "novelty"}, "the others he had last month"
    assert recommended("two", USERS[0], gone=True) == {"item 0", "item 3", "novelty"}


def recommended(run: str, user: str, **options: Any) -> set[str]:
    return {name for name, _ in hogwild.load(run).ranker(**options).for_user(user).items}


@pytest.mark.parametrize("gone", ["keep", "drop"])
def test_nobody_is_recommended_what_he_had_in_any_run_before(gone: str, ratings: Path, say: Say) -> None:
    """Files of the new rows alone; an item that comes back after it was dropped; the first run is deleted."""
    keep = f"model.init_from.gone={gone}"
    (ratings / "ratings.csv").write_text("user,item,rating\nuser 1,novelty,3\nuser 2,novelty,1\nuser 3,item 1,2\n")
    train(say, "two", "--continue", "one", keep)
    shutil.rmtree("one")
    left = {"keep": {"novelty", *ITEMS}, "drop": {"novelty", "item 1"}}[gone]
    assert recommended("two", "nobody") == {"novelty", "item 1"}
    assert recommended("two", "nobody", gone=True) == left
    assert recommended("two", "user 1", gone=True) == left & {"item 2"} and recommended("two", "user 1") == set()
    assert recommended("two", "user 3") == {"novelty"}
    lines = "\n".join(f"newcomer,{item},1" for item in ("novelty", *ITEMS))
    (ratings / "ratings.csv").write_text(f"user,item,rating\n{lines}\n")
    train(say, "three", "--continue", "two/checkpoints/latest", keep)
    had = {"nobody": set(), "user 0": {"item 1", "item 2", "item 4"}, "user 1": {*ITEMS, "novelty"} - {"item 2"}}
    for user, theirs in had.items():
        assert recommended("three", user) == {"novelty", *ITEMS} - theirs, user
    shutil.rmtree("two")
    status, said = say("train", "--resume", "three", "train.epochs=3", "--no-progress")
    assert status == 0 and recommended("three", "user 1") == {"item 2"}, f"a resume keeps the file: {said}"


def test_a_run_before_it_that_has_not_recorded_who_has_what_is_named(ratings: Path, say: Say) -> None:
    for file in (ratings / "one").glob("**/known.npz"):
        file.unlink()
    train(say, "two", "--continue", "one")
    train(say, "three", "--continue", "two")
    with pytest.raises(HogwildError, match=r"it continued .*one, which has no known\.npz") as refused:
        hogwild.load("three").ranker()
    assert refused.value.code == "run/pairs-unknown"
    assert recommended("three", "user 1", had="ratings.csv") == {"item 2"}


def test_a_row_is_dropped_after_as_many_runs_without_it_as_the_job_says(ratings: Path, say: Say) -> None:
    month(ratings / "ratings.csv", USERS[1:], ITEMS)
    train(say, "two", "--continue", "one", "model.init_from.gone=2")
    train(say, "three", "--continue", "two", "model.init_from.gone=2")
    assert state_of(ratings / "three")[1]["unseen"] == {"users": [2]}
    assert "user 0" in rows_of(ratings / "three")
    train(say, "resumed", "--continue", "two", "model.init_from.gone=2", "train.epochs=1")
    status, said = say("train", "--resume", "resumed", "train.epochs=2", "--no-progress")
    assert status == 0 and state_of(ratings / "resumed")[1]["unseen"] == {"users": [2]}, said
    said = train(say, "four", "--continue", "three", "model.init_from.gone=2")
    assert "users by name: 6 kept, 0 new, 1 gone" in said and "user 0" not in rows_of(ratings / "four")
    said = train(say, "five", "--continue", "one", "model.init_from.gone=drop")
    assert "users by name: 6 kept, 0 new, 1 gone" in said
    said = train(
        say,
        "whole",
        "--continue",
        "one",
        "model={class_path: hogwild.models.MatrixFactorization, init_args: {factors: 3}}",
    )
    assert "users by name" in said, "a section given as a whole does not take the run away"
    said = train(say, "six", "model.init_from=one", "model.init_from.gone=drop")  # a text, then a field of the map
    assert "users by name: 6 kept, 0 new, 1 gone" in said


def test_a_resume_before_the_first_checkpoint_has_the_other_runs_state_too(ratings: Path, say: Say) -> None:
    train(say, "two", "--continue", "one", "train.epochs=1")
    wanted = rows_of(ratings / "two")
    for entry in (ratings / "two" / "checkpoints").iterdir():
        entry.unlink() if entry.is_symlink() else [*map(Path.unlink, entry.iterdir()), entry.rmdir()]
    status, said = say("train", "--resume", "two", "--no-progress")
    assert status == 0 and "optimizer state of 4 of 4 parameters is from there" in said, said
    found = rows_of(ratings / "two")
    assert all(torch.equal(one, other) for name in wanted for one, other in zip(wanted[name], found[name], strict=True))


@pytest.mark.parametrize("buckets", [0, 50])
def test_a_vocabulary_grows_by_min_count_and_rare_words_that_have_a_row_are_trained(
    buckets: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 5)
    job = {
        "model": {"class_path": "hogwild.models.SkipGram", "init_args": {"dim": 4, "buckets": buckets}},
        "loss": {"class_path": "hogwild.losses.NegativeSampling"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
        "data": {
            "train": {"class_path": "hogwild.data.Text", "init_args": {"path": "text", "min_count": 5}},
            "batch_size": 64,
        },
        "train": {"procs": 0, "epochs": 1},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    train(say, "one")
    (tmp_path / "text").write_text("a dog sat\n" * 5 + "the bird\n")
    said = train(say, "two", "--continue", "one")
    assert "words by name: 2 kept, 3 kept that the data lacks, 2 new, 0 gone" in said
    assert "1 words rarer than min_count 5 are left out" in said
    (before, old), (after, new) = state_of(tmp_path / "one"), state_of(tmp_path / "two")
    assert new["names"]["words"] == ["a", "dog", "sat", "the", "cat", "on", "mat"]
    assert after["model"]["counts"].tolist() == [5, 5, 5, 1, 0, 0, 0]
    there, here = (names["names"]["words"] for names in (old, new))
    for word in ("cat", "on", "mat"):  # no sample, never drawn as a negative
        rows = (before["model"]["input.weight"][there.index(word)], after["model"]["input.weight"][here.index(word)])
        assert torch.equal(*rows) or buckets, word  # other words have its pieces
    vectors = hogwild.load("two").vectors
    if buckets:
        assert "dogs" not in vectors and vectors["dogs"].any() and vectors.most_similar("dogs", topn=9)[6:]
        table = after["model"]["subwords.weight"]
        starts, pieces = pieces_of(["mat"], 3, 6, buckets)
        own = after["model"]["input.weight"][here.index("mat")] + table[pieces].sum(0)
        torch.testing.assert_close(torch.from_numpy(vectors["mat"]), own / (1 + starts[1]) ** 0.5)
    status, said = say("train", "--resume", "two", "train.epochs=2", "--no-progress")
    assert status == 0, said


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_two_rows_of_one_name_are_refused(ratings: Path, say: Say) -> None:
    file = ratings / "one" / "names.json"
    for path in (file, *(ratings / "one" / "checkpoints").glob("update-*/names.json")):
        path.write_text(path.read_text().replace("user 1", "user 2"))
    status, said = say("train", "job.yaml", "--run-dir", "two", "--continue", "one")
    assert status != 0 and "its names.json does not belong to it" in said
    values, names = build(Component(**RATINGS["model"]), users=2, items=1), {"users": ["a", "a"], "items": ["i"]}  # type: ignore[arg-type]
    from safetensors.torch import save_file

    save_file(values.state_dict(), ratings / "model.safetensors")
    sizes = {"users": 2, "items": 1}
    (ratings / "names.json").write_text(json.dumps({"names": names, "sizes": sizes}))
    ours = {"names": {"users": ["a", "b"], "items": ["i"]}, "sizes": sizes}
    with pytest.raises(HogwildError, match="users: two rows in the file have the name 'a'") as refused:
        load_initial(values, str(ratings / "model.safetensors"), ours, Component(**RATINGS["model"]))  # type: ignore[arg-type]
    assert refused.value.code == "model/init-names"


def test_a_name_in_another_unicode_form_is_refused_and_not_a_new_row(ratings: Path, say: Say) -> None:
    month(ratings / "ratings.csv", ["Zo\u00eb", *USERS], ITEMS)
    train(say, "two")
    month(ratings / "ratings.csv", ["Zoe\u0308", *USERS], ITEMS)
    status, said = say("train", "job.yaml", "--run-dir", "three", "--continue", "two")
    assert status != 0 and "is 'Zoe\\u0308' in the data and 'Zo\\xeb' in the run" in said
    with pytest.raises(DataError) as refused:
        KnownNames({"users": ["Zo\u00eb"], "items": []}).extend(rated({"users": ["Zoe\u0308"], "items": ["i"]}))
    assert refused.value.code == "data/name-form"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--continue", "nothing"), "model.init_from: there is no "),
        (("--continue", "job.yaml"), "is not a file of torch.save"),
        (("--continue", "one", "model.init_from.gone=0"), "model.init_from.gone"),
        (("--continue", "one", "model.class_path=hogwild.models.ComplEx", "model.init_args={}"), "ComplEx"),
        (("--resume", "one", "--continue", "one"), "so --continue (one) is not allowed with it"),
    ],
)
def test_a_model_that_cannot_be_taken_is_refused(argv: tuple[str, ...], words: str, ratings: Path, say: Say) -> None:
    job = () if "--resume" in argv else ("job.yaml", "--run-dir", "two")
    status, said = say("train", *job, *argv)
    assert status != 0 and words in said, said
    assert not (ratings / "two" / "checkpoints").exists()
