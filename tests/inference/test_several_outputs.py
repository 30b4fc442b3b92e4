"""Models that return several tensors: metrics get what the model returns, predictions have a column for each, and
programs return them."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.errors import HogwildError
from hogwild.inference import inputs, programs
from hogwild.training.outputs import leaves_of
from tests.helpers.predicting import Say

HERE = __name__
ROWS = 20


@dataclass
class Answer:
    logits: Tensor
    score: Tensor
    penalty: Tensor | None = None


class Both(NamedTuple):
    logits: Tensor
    score: Tensor


class Rows(Dataset[Any]):
    def __init__(self, count: int = 300, seed: int = 0) -> None:
        self.x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], int(self.x[row].sum() > 0)


class Heads(nn.Module):
    """Returns two classes and a score in the form that is asked for."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.body, self.head = form, nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Any:
        logits, score = self.body(x), self.head(x)[:, 0]
        match self.form:
            case "dict":
                return {"logits": logits, "score": score}
            case "tuple":
                return logits, score
            case "namedtuple":
                return Both(logits, score)
            case "nested":
                return {"first": {"logits": logits}, "rest": [score, score * 2]}
            case "summed":
                return {"logits": logits, "penalty": logits.square().mean()}
            case "sums":
                return {"penalty": logits.square().mean()}
        return Answer(logits, score, logits.square().mean())


def loss(output: Any, target: Tensor) -> Tensor:
    leaves = [*leaves_of(output).values()]
    if leaves[0].dim() < 2:
        return leaves[0]
    return nn.functional.cross_entropy(leaves[0], target) + leaves[-1].mean() ** 2


class Part(nn.CrossEntropyLoss):
    """A loss for which accuracy is a default metric."""

    def forward(self, output: Any, target: Tensor) -> Tensor:
        return super().forward(next(iter(leaves_of(output).values())), target)


def right(outputs: Any, targets: Tensor) -> float:
    """A metric of ones own, of any form."""
    if isinstance(outputs, Answer):
        assert outputs.penalty is None, "no number stands for all samples"
    logits = next(iter(leaves_of(outputs).values()))
    assert logits.shape == (len(targets), 2)
    return float((logits.argmax(1) == targets).float().mean())


def of_dataclass(outputs: Any, targets: Tensor) -> float:
    return float(outputs.logits.mean())


def job(form: str, metrics: Any = "auto", loss: str = f"{HERE}.loss") -> dict[str, Any]:
    data = {"class_path": f"{HERE}.Rows"}
    return {
        "model": {"class_path": f"{HERE}.Heads", "init_args": {"form": form}},
        "loss": {"class_path": loss},
        "data": {"train": data, "val": {**data, "init_args": {"seed": 1}}, "batch_size": 32},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        "train": {"procs": 0, "epochs": 2},
        "evaluate": {"metrics": metrics},
        "log": {"tensorboard": False},
    }


@pytest.fixture
def trained(say: Say, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    def train(described: Any, *more: str) -> tuple[Path, str]:
        (tmp_path / "job.yaml").write_text(json.dumps(described))
        status, _, said = say("train", tmp_path / "job.yaml", "--run-dir", tmp_path / "run", *more)
        assert status == 0, said
        return tmp_path / "run", said

    return train


FORMS: dict[str, tuple[type, list[str]]] = {
    "dict": (dict, ["logits", "score"]),
    "tuple": (tuple, ["output.0", "output.1"]),
    "namedtuple": (Both, ["logits", "score"]),
    "dataclass": (Answer, ["logits", "score"]),
    "nested": (dict, ["first.logits", "rest.0", "rest.1"]),
}


def first(*names: str, fast: int = 1) -> list[Any]:
    """The first ones for `make test`, the others for `make test-all`."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (place >= fast)) for place, name in enumerate(names)]


@pytest.mark.parametrize("form", first("dataclass", "nested", "dict", "tuple", "namedtuple", fast=2))
def test_metrics_predictions_and_programs_have_what_the_model_returns(
    form: str, say: Say, trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 256)
    kind, names = FORMS[form]
    run, said = trained(job(form, [f"{HERE}.right", "accuracy"]))
    assert "evaluate.metrics: accuracy is left out: the model returns a " in said
    assert ("None stands for penalty" in said) == (form == "dataclass")
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    status, _, said = say("eval", run, "--predictions", tmp_path / "val.npz", "--json")
    assert status == 0, said
    val, model = Rows(seed=1), hogwild.load(run)
    found = model.predict(val)
    assert type(found) is kind and [*leaves_of(found)] == names
    stored = np.load(tmp_path / "val.npz")
    assert sorted(stored.files) == sorted([*names, "targets"])
    assert all(np.array_equal(stored[name], one.numpy()) for name, one in leaves_of(found).items())
    logits = leaves_of(found)[names[0]]
    targets = torch.tensor([val[row][1] for row in range(len(val))])
    assert metrics.keys() == {"loss", "right"}
    assert metrics["right"] == pytest.approx(float((logits.argmax(1) == targets).float().mean()))
    program = io.BytesIO()
    programs.torch_export(model.model, model.example())(program)
    program.seek(0)
    answer = leaves_of(torch.export.load(program).module()(val.x[:7]))
    wanted = leaves_of(model.model(val.x[:7]))
    assert [*answer] == [*wanted]
    for name, one in answer.items():
        torch.testing.assert_close(one, wanted[name])


def test_a_tensor_without_a_row_for_each_is_left_out_of_the_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(ROWS, 3)
    model = Heads("dataclass")
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    y = (x.sum(1) > 0).long()
    hogwild.train(model, TensorDataset(x, y), loss, rule, procs=0, epochs=1, run_dir=tmp_path / "run")
    found = hogwild.load(tmp_path / "run", model=Heads("dataclass")).predict(TensorDataset(x))
    assert "left out of the answers, without a row for each: penalty ()" in caplog.text
    assert found.logits.shape == (ROWS, 2)


def test_every_kind_of_file_has_every_tensor(say: Say, trained: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(ROWS, 3)
    np.savez(tmp_path / "t.npz", x=x.numpy(), y=(x.sum(1) > 0).long().numpy())
    described = job("dict")
    described["data"] = {"train": {"class_path": "hogwild.data.Npz", "init_args": {"path": str(tmp_path / "t.npz")}}}
    run, _ = trained(described)
    wanted = hogwild.load(run).predict(tmp_path / "t.npz")
    header = ["sample", "logits_0", "logits_1", "score"]
    status, lines, said = say("predict", run, tmp_path / "t.npz")
    assert status == 0, said
    first, *rows = csv.reader(lines)
    assert first == header and np.array([row[3] for row in rows], np.float32).tolist() == wanted["score"].tolist()
    for ending in ("npz", "parquet", "csv"):
        assert say("predict", run, tmp_path / "t.npz", "--out", tmp_path / f"out.{ending}")[0] == 0
    arrays, table = np.load(tmp_path / "out.npz"), parquet.read_table(tmp_path / "out.parquet")
    assert np.array_equal(arrays["logits"], wanted["logits"].numpy())
    assert sorted(arrays.files) == ["logits", "sample", "score"]
    assert table.column_names == header and table.column("score").to_pylist() == wanted["score"].tolist()
    assert (tmp_path / "out.csv").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("form", "settings", "words"),
    [
        ("dict", {"loss": f"{HERE}.Part"}, ["accuracy is left out: the model returns a dict, not one tensor"]),
        ("dict", {"metrics": [f"{HERE}.of_dataclass"]}, ["of_dataclass is left out: AttributeError: 'dict' object"]),
        ("dict", {"metrics": ["rmse", "auc"]}, ["rmse is left out: output and target", "auc is left out: the model"]),
        ("summed", {"metrics": [f"{HERE}.right"]}, ["right: None stands for penalty of the output"]),
        ("sums", {"metrics": [f"{HERE}.right"]}, ["right is left out: the output, a dict has no tensor with a row"]),
    ],
)
def test_a_metric_that_cannot_use_them_is_left_out_with_a_sentence(
    form: str, settings: dict[str, Any], words: list[str], trained: Callable[..., Any]
) -> None:
    run, said = trained(job(form, **settings))
    assert all(f"evaluate.metrics: {one}" in said for one in words), said
    is_there = "None stands" in words[0]
    assert [*json.loads((run / "summary.json").read_text())["metrics"]] == ["loss", *["right"] * is_there]


def test_outputs_without_rows_are_told(say: Say, trained: Callable[..., Any]) -> None:
    run, _ = trained(job("sums"))
    with pytest.raises(HogwildError, match=r"no tensor with a row for each of 300 rows: penalty \(\)"):
        hogwild.load(run).predict(Rows())
    status, _, said = say("eval", run, "--predictions", "out.npz")
    assert status != 0 and "no tensor with a row for each sample" in said


class Long(nn.Module):
    """An answer for each step of a padded sequence, so its width varies from batch to batch."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x * self.weight

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class Steps(Dataset[Any]):
    def __init__(self, path: str = "") -> None:
        """`path`: none is read."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> Any:
        sequence = torch.ones(2 if row > 255 else 5 - row % 2)
        return sequence, sequence


@pytest.mark.parametrize("ending", first("", ".npz", ".csv", ".parquet", fast=2))
def test_answers_of_other_widths_make_no_table(
    ending: str, say: Say, trained: Callable[..., Any], tmp_path: Path
) -> None:
    described = job("dict")
    described["model"] = {"class_path": f"{HERE}.Long"}
    described["loss"] = {"class_path": "torch.nn.MSELoss"}
    described["data"] = {"train": {"class_path": f"{HERE}.Steps"}, "padding": {"target": 0}}
    run, _ = trained(described)
    out = ["--out", tmp_path / f"out{ending}"] if ending else []
    status, _, said = say("predict", run, tmp_path / "any", *out)
    assert status != 0 and "model/output-shape" in said
    assert not (tmp_path / f"out{ending}").exists() or not ending
    with pytest.raises(HogwildError, match="of shape"):
        hogwild.load(run).predict(Steps())


@pytest.mark.parametrize("form", first("dict", "tuple", "dataclass"))
def test_an_onnx_model_names_its_outputs(form: str) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'hogwild[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'hogwild[onnx]'")
    from onnx.reference import ReferenceEvaluator

    model, x, written = Heads(form).eval(), torch.randn(4, 3), io.BytesIO()
    programs.onnx(model, inputs.Example((x,), (frozenset({0}),)))(written)
    made = onnx.load_from_string(written.getvalue())
    wanted = leaves_of(model(x[:2]))
    assert [one.name for one in made.graph.output] == [*wanted]
    found = ReferenceEvaluator(made).run(None, {made.graph.input[0].name: x[:2].numpy()})
    for one, name in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(np.asarray(one)), wanted[name].detach())


class OddNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[Any, Tensor]:
        y = self.layer(x)
        return {'a "b"\n, c': y, "x" * 10_000: y[:, 0], "": y.bfloat16(), 7: y, "sample": y[:, 1]}


def test_any_name_is_a_column(say: Say, trained: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(ROWS, 3)
    np.savez(tmp_path / "t.npz", x=x.numpy(), y=(x.sum(1) > 0).long().numpy())
    described = job("dict", loss=f"{HERE}.Part")
    described["model"] = {"class_path": f"{HERE}.OddNames"}
    described["data"] = {"train": {"class_path": "hogwild.data.Npz", "init_args": {"path": str(tmp_path / "t.npz")}}}
    run, _ = trained(described)
    pairs = [f'a "b"\n, c_{k}' for k in (0, 1)]
    names = ["sample", *pairs, "x" * 10_000, "output._0", "output._1", "output.7_0", "output.7_1", "sample_"]
    for ending in ("csv", "parquet", "npz"):
        status, _, said = say("predict", run, tmp_path / "t.npz", "--out", tmp_path / f"out.{ending}")
        assert status == 0, said
    with open(tmp_path / "out.csv", newline="") as file:
        assert next(csv.reader(file)) == names
    assert parquet.read_table(tmp_path / "out.parquet").column_names == names
    assert sorted(np.load(tmp_path / "out.npz").files) == sorted(
        ["sample", 'a "b"\n, c', "x" * 10_000, "output.", "output.7", "sample_"]
    )


def test_an_estimator_needs_one_tensor() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'hogwild[sklearn]'")
    from hogwild.estimator import Classifier

    made = Classifier(lambda features, outputs: Heads("dict"), loss=loss, epochs=1)
    x = np.random.default_rng(0).normal(size=(30, 3))
    with pytest.raises(HogwildError, match="returns a dict; a Classifier needs one tensor"):
        made.fit(x, x.sum(1) > 0).predict(x)
