"""The repr of everything public: one line of at most 200 characters, whatever is in it."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hogwild
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.config.schema import Section
from hogwild.data import Digits, Packed, Ratings, Rollout
from hogwild.data.pair_tables import PairTable
from hogwild.estimator import Classifier, Recommender, Regressor
from hogwild.feeds.row_reader import InTurn
from hogwild.formatting import LINE
from hogwild.inference.evaluate import reevaluate
from hogwild.inference.recommend import Had, ItemRanker, RecommendedRows
from hogwild.losses import BprLoss
from hogwild.models import BprFactorization, Mlp
from hogwild.monitoring.callbacks import JobEvent
from hogwild.monitoring.run_status import read_status
from hogwild.report.run_view import read_run
from hogwild.searching.call import SearchTrial
from tests.helpers.jobs import HOME

ODD = ("a" * 10_000, "two\nlines", "it's", 'q"uote', " ")
PACKAGES = ("hogwild", "hogwild.data", "hogwild.estimator")


class Played(Rollout):
    def play(self, model: nn.Module, generator: torch.Generator) -> Any:
        raise AssertionError


def written(folder: Path) -> dict[str, Callable[[], Any]]:
    """By class of `hogwild.data`, its data set of a small file."""
    (folder / "table.csv").write_text("a,b,y\n1,2,3\n4,5,6\n")
    (folder / "pairs.csv").write_text("user,item\nu,i\nv,j\n")
    (folder / "graph.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    (folder / "rows.svm").write_text("1 1:1\n0 2:1\n")
    (folder / "text.txt").write_text("one two three\n" * 100)
    (folder / "scores.txt").write_text("one\ttwo\t3\n")
    (folder / "play.txt").write_text("\n\n".join(f"{'AB'[k % 2]}:\nsome words" for k in range(30)))
    (folder / "jester.csv").write_text("1," + ",".join(["5"] + ["99"] * 99) + "\n")
    np.savez(folder / "arrays.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int64))
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / "images" / name / "1.png")
        (folder / "names").mkdir(exist_ok=True)
        (folder / "names" / f"{name}.txt").write_text("".join(f"n{k}\n" for k in range(20)))
    data: Any = importlib.import_module("hogwild.data")
    arguments: dict[str, dict[str, Any]] = {
        "Csv": {"path": "table.csv", "target": "y"},
        "Clicks": {"path": "table.csv", "target": "y"},
        "Ratings": {"path": "pairs.csv"},
        "Triples": {"path": "graph.tsv"},
        "LibSvm": {"path": "rows.svm"},
        "Follow": {"path": "rows.svm"},
        "Kafka": {"servers": "none", "topic": "rows"},
        "Text": {"path": "text.txt"},
        "WordPairs": {"path": "scores.txt"},
        "Characters": {"path": "text.txt", "steps": 4},
        "Speakers": {"path": "play.txt"},
        "Names": {"path": "names"},
        "Npz": {"path": "arrays.npz"},
        "ImageFolder": {"path": "images", "size": 4},
        "Jester": {"path": "jester.csv"},
        "Digits": {},
    }
    makers: dict[str, Callable[[], Any]] = {}
    for name, given in arguments.items():
        paths = {key: str(folder / value) for key, value in given.items() if key == "path"}
        makers[name] = lambda name=name, given=given, paths=paths: getattr(data, name)(**{**given, **paths})  # type: ignore[misc]
    makers["Packed"] = lambda: Ratings(str(folder / "pairs.csv")).pack(InTurn(0), "data.train")
    makers["Rollout"] = Played
    return makers


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Real objects of all public classes, and all that public calls return."""
    folder = tmp_path_factory.mktemp("reprs")
    found = [make() for make in written(folder).values()]
    run, path = folder / "job", str(HOME / "configs/digits.yaml")
    argv = ["train", path, "train.epochs=1", "--procs", "0", "--no-progress", "--run-dir", str(run)]
    assert main.run(argv) == 0
    job = load_job(run / "resolved.yaml")
    model = Mlp(64, 16, 10)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluate = {f"metric_{k}_{'x' * 60}": lambda outputs, targets: 1.0 for k in range(12)}
    result = hogwild.train(
        model,
        Digits(),
        nn.CrossEntropyLoss(),
        rule,
        val=Digits("test"),
        procs=0,
        evaluate={"metrics": evaluate},
        run_dir=folder / ("run" * 60),
    )
    values = {"x" * 300: 0.5}
    trial = SearchTrial(0, "complete", {}, values, 1, "", folder)
    searched = hogwild.SearchResult("succeeded", "", folder / "searched", [*values], [trial], [trial], {}, None, None)
    found += [searched, hogwild.SearchInterrupted(searched)]
    trained = hogwild.load(result.run_dir, model=model)
    found += [result, result.history, hogwild.TrainInterrupted(result), trained, trained.job]
    found += [read_run(result.run_dir), read_run(result.run_dir).records, read_status(result.run_dir)]
    found += [read_run(result.run_dir).snapshot, hogwild.Client("http://127.0.0.1:1")]
    table = folder / "digits.npz"
    np.savez(table, x=Digits("test").tensors[0].numpy())
    found += [(predictor := hogwild.load(run).predictor(str(table))), next(predictor.scores())]
    found.append(JobEvent("evaluation", result.run_dir, lambda: None, metrics=result.metrics))
    factors = BprFactorization(len(ODD), len(ODD), 4)
    ranker = ItemRanker(factors, ODD, ODD, Had.of(len(ODD), {"user": np.arange(len(ODD)), "item": np.arange(len(ODD))}))
    found += [ranker, ranker.for_user(ODD[1], 3), ranker.had]
    found.append(RecommendedRows(*(np.arange(1000) for _ in range(4))))
    found.append(PairTable.of([[1, 2], [3, 4]]))
    found.append(hogwild.load(*ranked(folder)).vectors_of("items"))
    for kind in (Classifier, Regressor, Recommender):
        found.append(kind(settings={"name": "x" * 500, "log": {"progress": False}, "threads": 1}))
    found += [job, *(value for _, value in job if isinstance(value, Section))]
    found.append(reevaluate(job, (run / "checkpoints" / "latest").resolve(), None, keep_outputs=True))
    return found


def ranked(folder: Path) -> tuple[Path]:
    (folder / "odd.csv").write_text("user,item\n" + "".join(f"{k},{'i' * (k + 1)}\n" for k in range(40)))
    model = BprFactorization(40, 40)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Ratings(str(folder / "odd.csv"))
    hogwild.train(model, data, BprLoss(), rule, procs=0, run_dir=folder / "ranked")
    return (folder / "ranked",)


def test_the_repr_of_everything_public_is_one_short_line(objects: list[Any]) -> None:
    long = {type(one).__name__: repr(one) for one in objects if "\n" in repr(one) or len(repr(one)) > LINE}
    assert not long
    public = {getattr(importlib.import_module(package), name) for package in PACKAGES for name in all_of(package)}
    others = {one for one in public if isinstance(one, type) and not issubclass(one, hogwild.HogwildError)}
    needs_files = {"Mnist", "FashionMnist"}
    made = {base for one in objects for base in type(one).__mro__}
    assert {one.__name__ for one in others - made} <= needs_files
    assert Packed in made


def all_of(package: str) -> list[str]:
    names: list[str] = importlib.import_module(package).__all__
    return names


def test_a_repr_tells_what_the_object_is(objects: list[Any]) -> None:
    shown = {type(one).__name__: repr(one) for one in objects}
    assert shown["Job"] == "Job('digits': hogwild.models.Mlp on hogwild.data.Digits)"
    assert shown["Trained"].startswith("Trained(Mlp; ") and shown["Trained"].endswith(")")
    assert shown["TrainResult"].startswith("TrainResult(succeeded (epochs); 23 updates, ")
    assert shown["WordVectors"] == "WordVectors(40 items, 32 numbers each)"
    assert shown["Had"] == "Had(users=5, starts=int64 (6,), items=int64 (5,), others=IdRows)"
    assert shown["Recommendation"].startswith("Recommendation(items=list of 3, notes=")
