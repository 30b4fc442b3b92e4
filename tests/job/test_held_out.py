"""The held-out rows: a property of names, so that a run that continues on grown data is not evaluated on what the run
before was trained on; where it is not, the job says so."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.config.load import job_from_mapping
from hogwild.data import Ratings
from hogwild.feeds.packed import Packed, columns_of
from hogwild.feeds.row_reader import InTurn
from hogwild.job.build import build
from hogwild.job.parts import Parts
from hogwild.planning.device_placement import planned
from tests.job.conftest import Say

MODEL = {"class_path": "hogwild.models.MatrixFactorization", "init_args": {"factors": 2}}


def parts_of(train: Mapping[str, Any], val: Mapping[str, Any], name: str = "Ratings", **more: Any) -> Parts:
    """A job of ratings, or triples, as built."""
    model: Any = MODEL if name == "Ratings" else {"class_path": "hogwild.models.DistMult", "init_args": {"dim": 4}}
    loss = "torch.nn.MSELoss" if name == "Ratings" else "hogwild.losses.SoftmaxLoss"
    whole = {"class_path": f"hogwild.data.{name}", "init_args": dict(train)}
    val = val if "fraction" in val else {"class_path": f"hogwild.data.{name}", "init_args": dict(val)}
    sections: dict[str, Any] = {
        "name": "held-out",
        "model": {**model, **more.pop("model", {})},
        "loss": {"class_path": loss},
        "data": {"train": whole, "val": val, "batch_size": 8},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"procs": 0},
    }
    return build(planned(job_from_mapping(sections | more, "test")), None)


def named(packed: Packed | None) -> set[tuple[str, ...]]:
    """The rows as the file spells them."""
    assert packed is not None
    columns = columns_of(packed)
    assert columns is not None
    return set(zip(*([str(names[row]) for row in rows] for names, rows in columns), strict=True))


def divided(file: Path, kind: str, way: str) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """The names of the (training, held-out) rows, divided by the data set or by the job."""
    if way == "holdout":
        train, test = (
            Ratings(file, holdout={"fraction": 0.3, "part": part}).pack(InTurn(0)) for part in ("train", "test")
        )
        return named(train), named(test)
    parts = parts_of({"path": str(file)}, {"fraction": 0.3}, kind)
    assert parts.val is not None
    return named(parts.train.packed), named(parts.val.packed)


@pytest.mark.parametrize(("kind", "way"), [("Ratings", "holdout"), ("Ratings", "data.val"), ("Triples", "data.val")])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), new=st.sampled_from(["12", "000", "anna", "7.5", "-1", "é", "99999999999"]))
def test_a_row_stays_on_its_side_whatever_else_the_data_hold(
    tmp_path_factory: pytest.TempPathFactory, kind: str, way: str, seed: int, new: str
) -> None:
    random.seed(seed)
    file = tmp_path_factory.mktemp("grown") / "table"
    middle = ["\tlikes" if kind == "Triples" else ""]
    before = [f"{n}{random.choice(middle)}\t{i}" for n in range(12) for i in random.sample(range(12), 6)]
    rating = "" if kind == "Triples" else "\t3"
    file.write_text("".join(f"{line}{rating}\n" for line in before))
    train, test = divided(file, kind, way)
    assert len(train) + len(test) == len(before)
    gone, more = set(random.sample(before, 20)), [f"{new}{middle[0]}\t{i}" for i in range(5)]
    after = [line for line in before if line not in gone] + more + [f"3{middle[0]}\t{new}x"]
    random.shuffle(after)
    file.write_text("".join(f"{line}{rating}\n" for line in after))
    trained, tested = divided(file, kind, way)
    assert not (train & tested or test & trained), "a row has changed sides"
    assert len(trained) + len(tested) == len(after)


def test_how_many_rows_of_the_held_out_part_are_trained_on_is_said_unless_it_is_none(tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text(
        "user,item,rating,time\n"
        + "".join(f"u{n},{i},3,{(7 * n + 3 * i) % 10}\n" for n in range(10) for i in range(10))
    )
    path, by_hash, last = {"path": str(file)}, {"fraction": 0.2, "seed": 3}, {"last": 2}
    right: list[dict[str, Any]] = [by_hash, last, {"fraction": 0.3, "by": "time"}]
    for holdout in right:
        train, test = ({**path, "holdout": {**holdout, "part": part}} for part in ("train", "test"))
        assert not [note for note in parts_of(train, test).notes if "are in data.train, too" in note]
    test = {**path, "holdout": {**last, "part": "test"}}
    for train, many in (
        (path, 20),  # the holdout of data.train is forgotten
        ({**path, "holdout": {**last, "part": "test"}}, 20),  # so is its part
    ):
        found = [note for note in parts_of(train, test).notes if "are in data.train, too" in note]
        assert len(found) == 1 and f"data.val: {many} of its 20 rows are in data.train, too" in found[0]
    other = parts_of({**path, "holdout": {**by_hash, "part": "train"}}, test)
    assert other.val is not None
    both = named(other.train.packed) & named(other.val.packed)
    assert both and any(f"data.val: {len(both)} of its 20 rows are in" in note for note in other.notes)


def test_the_log_and_the_summary_have_ranking_metrics_beside_those_of_the_most_popular_items(
    tmp_path: Path, say: Say
) -> None:
    lines = [f"u{u},i{i},{1 + (u * i) % 5}" for u in range(20) for i in range(12) if (u * 7 + i * i) % (2 + i % 4) < 2]
    (tmp_path / "pairs.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    data = {"class_path": "hogwild.data.Ratings", "init_args": {"path": str(tmp_path / "pairs.csv")}}
    job = {
        "model": {"class_path": "hogwild.models.BprFactorization", "init_args": {"factors": 2}},
        "loss": {"class_path": "hogwild.losses.BprLoss"},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.0}},
        "data": {"train": data, "val": {"fraction": 0.3}, "batch_size": 16},
        "train": {"procs": 0, "epochs": 2},
        "evaluate": {"metrics": ["ndcg@3", "coverage@3", "auc"]},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    run = tmp_path / "run"
    status, said = say("train", str(tmp_path / "job.yaml"), "--run-dir", str(run))
    summary = json.loads((run / "summary.json").read_text())
    assert status == 0 and [*summary["popularity"]] == ["ndcg@3", "coverage@3", "auc"], said
    words = [
        f"{name} {summary['metrics'][name]:.4g} (popularity {value:.4g})"
        for name, value in summary["popularity"].items()
    ]
    assert said.count("  ".join(words)) == 2, "once for each evaluation"
    assert f"auc {summary['metrics']['auc']:.4f} (popularity {summary['popularity']['auc']:.4f})" in said
    status, said = say("eval", str(run), "--json")
    assert status == 0 and json.loads(said.splitlines()[-1])["popularity"] == summary["popularity"]
    assert json.loads((run / "status.json").read_text())["popularity"] == summary["popularity"]


def test_validation_data_that_are_the_training_data_are_said(tmp_path: Path, say: Say) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 20)
    job = f"""
name: text
model: {{class_path: hogwild.models.CharRnn, init_args: {{hidden: 4}}}}
loss: {{class_path: torch.nn.CrossEntropyLoss}}
data:
  train: {{class_path: hogwild.data.Characters, init_args: {{path: {text}, steps: 8}}}}
  val: {{class_path: hogwild.data.Characters, init_args: {{path: {text}, steps: 8}}}}
  batch_size: 8
optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.1}}}}
train: {{procs: 0, epochs: 1}}
log: {{tensorboard: false}}
"""
    (tmp_path / "job.yaml").write_text(job)
    status, said = say("train", str(tmp_path / "job.yaml"), "--run-dir", str(tmp_path / "a"))
    assert status == 0 and "data.val is data.train itself: the figures are of what was trained on" in said, said
    right = "data.val.init_args.split=val"
    status, said = say("train", str(tmp_path / "job.yaml"), right, "--run-dir", str(tmp_path / "b"))
    assert status == 0 and "data.val" not in said, said
    status, said = say(
        "train", str(tmp_path / "job.yaml"), right, "--continue", str(tmp_path / "b"), "--run-dir", str(tmp_path / "c")
    )
    assert status == 0 and "data.val: rows of this data are held out by their place" in said, said
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    status, said = say("train", "--resume", str(tmp_path / "c"), "train.epochs=2")
    assert status == 0 and "data.val" not in said, "the run before is not read again"


def test_a_run_that_continues_says_that_its_held_out_rows_may_have_been_trained_on(tmp_path: Path, say: Say) -> None:
    rated = tmp_path / "ratings.csv"
    rated.write_text("user,item,rating\n" + "".join(f"u{n},{i},{(n + i) % 5}\n" for n in range(12) for i in range(12)))
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(f"{n / 10},{n / 5}\n" for n in range(40)))
    common = ["train.procs=0", "train.epochs=1", "log.tensorboard=false"]
    data = f"{{class_path: hogwild.data.Ratings, init_args: {{path: {rated}}}}}"
    mf = [
        f"data.train={data}",
        "data.val={fraction: 0.2}",
        "model.class_path=hogwild.models.MatrixFactorization",
        "model.init_args={factors: 2}",
        "loss={class_path: torch.nn.MSELoss}",
        *["optimizer={class_path: torch.optim.SGD, init_args: {lr: 0.1}}", "evaluate.metrics=[]"],
    ]
    csv = [
        f"data.train={{class_path: hogwild.data.Csv, init_args: {{path: {table}, target: y}}}}",
        *[
            "data.val={fraction: 0.2}",
            "model.class_path=hogwild.models.Mlp",
            "model.init_args={hidden: [4], classes: 1}",
        ],
        *mf[4:],
    ]
    words = {
        "Csv": "are held out by their place, not by a name",
        "seed": "'seed': 7} is held out, {'fraction': 0.2, 'seed': ",
    }
    for name, job, change, word in (
        ("csv", csv, [], words["Csv"]),
        ("mf", mf, [], None),
        ("seed", mf, ["seed=7"], words["seed"]),
    ):
        first = str(tmp_path / name)
        status, text = say("train", "--run-dir", first, *common, *job)
        assert status == 0 and "may have been trained on" not in text, text
        status, text = say("train", "--continue", first, "--run-dir", f"{first}-2", *common, *job, *change)
        assert status == 0, text
        assert ("may have been trained on" in text) == (word is not None) and (word or "") in text


@pytest.mark.parametrize("holdout", [{"last": 1}, {"fraction": 0.2, "by": "time"}])
def test_a_holdout_by_time_may_have_been_trained_on_by_the_run_before(
    holdout: dict[str, Any], tmp_path: Path, say: Say
) -> None:
    """Once newer rows have gone, rows that were in the training part are the newest."""
    file = tmp_path / "ratings.csv"
    lines = [f"u{n},{(i + 2 * n) % 12},{(n + i) % 5},{10 * i + n}" for i in range(12) for n in range(6)]
    file.write_text("\n".join(["user,item,rating,time", *lines]) + "\n")
    parts = [{"path": str(file), "holdout": {**holdout, "part": part}} for part in ("train", "test")]
    before, _ = (named(Ratings(**one).pack(InTurn(0))) for one in parts)
    file.write_text("\n".join(["user,item,rating,time", *lines[:-18]]) + "\n")
    assert before & named(Ratings(**parts[1]).pack(InTurn(0))), "trained on"
    job: Any = {
        "model": MODEL,
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {
            role: {"class_path": "hogwild.data.Ratings", "init_args": one}
            for role, one in zip(("train", "val"), parts, strict=True)
        },
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"procs": 0, "epochs": 1},
        "evaluate": {"metrics": []},
        "log": {"tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    status, said = say("train", str(tmp_path / "job.yaml"), "--run-dir", first)
    assert status == 0 and "newest rows" not in said, said
    status, said = say("train", str(tmp_path / "job.yaml"), "--run-dir", second, "--continue", first)
    words = f"data.val: the newest rows are held out: {first} was trained on some of them if the data have lost newer"
    assert status == 0 and words in said, said
