"""`hogwild eval RUN --data FILE`: any file is scored with the job's metrics, read as its validation data is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import hogwild
from hogwild.cli import main

LONG = "n" * 10_000
NAMES = [f"e{k}" for k in range(12)] + ["with space", "it's", 'q"', LONG]


def train(folder: Path, name: str, job: dict[str, Any]) -> Path:
    file, run = folder / f"{name}.yaml", folder / name
    quick = {"train": {"procs": 0, "epochs": 1}, "checkpoint": {"every_s": None}, "log": {"tensorboard": False}}
    file.write_text(yaml.safe_dump({**quick, **job}))
    assert main.run(["train", str(file), "--no-progress", "--run-dir", str(run)]) == 0
    return run


def evaluated(capsys: pytest.CaptureFixture[str], run: Path, *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main.run(["eval", str(run), *argv, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    draw = np.random.default_rng(1)
    pairs = [(a, b) for a in range(len(NAMES)) for b in range(len(NAMES)) if a != b]
    chosen = [pairs[k] for k in draw.permutation(len(pairs))[:150]]
    rows = [f"{NAMES[a]}\tr{(a + b) % 3}\t{NAMES[b]}\n" for a, b in chosen]
    for name, part in (("train", rows[:110]), ("valid", rows[110:130]), ("test", rows[130:])):
        (folder / f"{name}.tsv").write_text("".join(part))
    triples = {"class_path": "hogwild.data.Triples"}
    job = {
        "model": {"class_path": "hogwild.models.DistMult", "init_args": {"dim": 8, "negatives": 8, "init_scale": 0.5}},
        "loss": {"class_path": "hogwild.losses.SoftmaxLoss"},
        "data": {
            "train": triples | {"init_args": {"path": str(folder / "train.tsv")}},
            "val": triples | {"init_args": {"path": str(folder / "valid.tsv")}},
        },
        "optimizer": {"init_args": {"lr": 0.5}},
    }
    train(folder, "run", job)
    return folder


def filtered_mrr(folder: Path, known: tuple[str, ...], asked: str) -> float:
    """By its definition, with sets."""
    trained: Any = hogwild.load(folder / "run")
    place = {kind: {name: k for k, name in enumerate(trained.names[kind])} for kind in ("entities", "relations")}

    def read(name: str) -> list[tuple[int, int, int]]:
        lines = [line.split("\t") for line in (folder / f"{name}.tsv").read_text().splitlines()]
        return [(place["entities"][h], place["relations"][r], place["entities"][t]) for h, r, t in lines]

    true = {triple for name in known for triple in read(name)}
    found = []
    for triple in read(asked):
        for side in (0, 1):
            scores = trained.model.answer_scores(torch.tensor([triple]), side)[0].tolist()
            own = triple[2 - 2 * side]
            better = 0
            for entity, score in enumerate(scores):
                other = (entity, *triple[1:]) if side else (*triple[:2], entity)
                better += entity != own and other not in true and score > scores[own]
            found.append(1 / (1 + better))
    return float(np.mean(found))


def test_the_test_triples_of_a_graph_are_ranked_among_all_that_are_not_known(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = evaluated(capsys, graph / "run")
    again = evaluated(capsys, graph / "run", "--data", str(graph / "valid.tsv"))
    assert again["metrics"] == own["metrics"] and (own["data"], again["recorded"]) == ("data.val", None)
    found = evaluated(capsys, graph / "run", "--data", str(graph / "test.tsv"))
    assert (found["samples"], found["data"]) == (20, str(graph / "test.tsv"))
    assert found["metrics"]["mrr"] == pytest.approx(filtered_mrr(graph, ("train", "valid", "test"), "test"), abs=1e-6)
    assert found["metrics"]["mrr"] != pytest.approx(filtered_mrr(graph, ("train", "test"), "test"), abs=1e-6)


def test_what_the_training_data_does_not_have_is_left_out_and_said(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "odd.tsv").write_text(f"e1\tr0\te2\nnobody\tr0\te2\n{LONG}\tr1\tit's\n")
    capsys.readouterr()
    assert main.run(["eval", str(graph / "run"), "--data", str(tmp_path / "odd.tsv")]) == 0
    assert "2 samples of " in capsys.readouterr().out and "1 of 3 triples are left out" in caplog.text


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    draw = np.random.default_rng(2)
    for name, rows in (("houses", 80), ("others", 30)):
        x = draw.normal(size=(rows, 2)).round(3)
        lines = [f"{a},{b},{round(2 * a - b, 3)}\n" for a, b in x.tolist()]
        (folder / f"{name}.csv").write_text("a,b,y\n" + "".join(lines))
    job = {
        "model": {"class_path": "hogwild.models.Tabular", "init_args": {"hidden": [4]}},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {
            "train": {"class_path": "hogwild.data.Csv", "init_args": {"path": "houses.csv", "target": "y"}},
            "val": {"fraction": 0.2},
        },
        "evaluate": {"metrics": ["rmse", "mae"]},
    }
    train(folder, "run", job)
    train(folder, "unwatched", job | {"data": {"train": job["data"]["train"]}, "evaluate": {}})
    text = "\n\n".join(f"{'AB'[k % 2]}:\nsome words and {k}" for k in range(40))
    (folder / "play.txt").write_text(text)
    play = {"class_path": "hogwild.data.Characters", "init_args": {"path": str(folder / "play.txt"), "steps": 4}}
    held = {**play, "init_args": {**play["init_args"], "split": "val"}}
    of_text = {"model": {"class_path": "hogwild.models.CharRnn", "init_args": {"hidden": 8}}}
    train(folder, "text", of_text | {"data": {"train": play, "val": held}})
    digits = {"train": {"class_path": "hogwild.data.Digits"}, "val": {"fraction": 0.1}}
    train(
        folder,
        "digits",
        {
            "model": {"class_path": "hogwild.models.Mlp", "init_args": {"hidden": 8, "classes": 10, "features": 64}},
            "data": digits,
        },
    )
    return folder


@pytest.mark.parametrize("run", ["run", "unwatched"])
def test_a_table_is_scored_as_its_predictions_say(run: str, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table / "others.csv"
    found = evaluated(capsys, table / run, "--data", str(file))
    answers = hogwild.load(table / run).predict(file).reshape(-1).numpy()
    targets = np.loadtxt(file, delimiter=",", skiprows=1)[:, 2]
    assert found["samples"] == 30
    assert found["metrics"]["loss"] == pytest.approx(float(np.mean((answers - targets) ** 2)), rel=1e-4)


def test_all_of_a_text_is_scored_and_not_the_part_that_a_split_holds_back(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, table / "text", "--data", str(table / "play.txt"))
    assert found["samples"] == (len((table / "play.txt").read_text()) - 1) // 4


@pytest.mark.parametrize(
    ("run", "content", "words"),
    [
        ("run", None, ["there is no such file (looked for", "code data/not-found"]),
        ("run", "", ["empty", "code data/empty"]),
        ("run", "a,b\n1,2\n", ["'y'", "code data/csv-columns"]),
        ("run", "a,b,y\n1,x,3\n", ["line 2", "'x'", "code data/"]),
        ("digits", "1\n", ["hogwild.data.Digits has no argument path", "code usage/no-input"]),
    ],
    ids=["missing", "empty", "no target", "a bad number", "a class without files"],
)
def test_a_file_that_cannot_be_scored_is_an_error_with_its_place(
    run: str, content: str | None, words: list[str], table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a file's.csv"
    if content is not None:
        file.write_text(content)
    capsys.readouterr()
    assert main.run(["eval", str(table / run), "--data", str(file)]) != 0
    said = capsys.readouterr().err
    assert all(word in said for word in words) and "a file's.csv" in said, said


def test_a_name_that_no_file_can_have_is_an_error(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["eval", str(table / "run"), "--data", LONG]) != 0
    assert "there is no such file" in capsys.readouterr().err
