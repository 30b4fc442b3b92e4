"""Jobs with weights of samples and of classes, from the table to the predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.errors import HogwildError

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'hogwild[csv]'")


DENSE = """
version: 1
model: {{class_path: hogwild.models.Mlp, init_args: {{hidden: [4]}}}}
loss: {{class_path: torch.nn.CrossEntropyLoss{loss}}}
data:
  train: {{class_path: hogwild.data.Csv, init_args: {{path: {train}, target: y, target_type: class{more}}}}}
  val: {{class_path: hogwild.data.Csv, init_args: {{path: {val}, target: y, target_type: class{more}}}}}
  batch_size: 10000
optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.5}}}}
train: {{procs: 0, epochs: 5}}
evaluate: {{metrics: [accuracy, log_loss, auc, macro_f1, calibration_error]}}
"""
SPARSE = """
version: 1
model: {{class_path: hogwild.models.SparseLinear}}
loss: {{class_path: hogwild.losses.LogisticLoss}}
data:
  train: {{class_path: hogwild.data.Clicks, init_args: {{path: {path}, target: y, weight: w}}}}
  val: {{fraction: 0.25}}
  batch_size: 50
optimizer: {{class_path: torch.optim.Adagrad, init_args: {{lr: 0.1}}}}
train: {{procs: 2, epochs: 5}}
evaluate: {{metrics: [log_loss, auc, calibration_error]}}
"""


def rows(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (N, 2), three classes (N,), weights (N,) of whole numbers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).round(3)
    return x, (x.sum(1) > 0).astype(int) + (x[:, 0] > 1), rng.integers(0, 4, count)


def write(path: Path, x: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> Path:
    columns = [*x.T, *([] if w is None else [w]), y]
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(["a,b" + (",w" if w is not None else "") + ",y", *lines]) + "\n")
    return path


def run(folder: Path, name: str, text: str, *more: str) -> dict[str, Any]:
    (folder / f"{name}.yaml").write_text(text)
    assert main.run(["train", str(folder / f"{name}.yaml"), "--run-dir", str(folder / name), *more]) == 0
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return summary


def parameters(run_dir: Path) -> list[torch.Tensor]:
    return [param.detach() for param in hogwild.load(run_dir).model.parameters()]


@pytest.mark.slow
def test_a_job_with_weights_is_the_one_with_rows_repeated(tmp_path: Path) -> None:
    """By the whole data in one batch; the validation data has weights, too."""
    parts = {"train": rows(1), "val": rows(2)}
    weighted = {name: write(tmp_path / f"{name}.csv", *part) for name, part in parts.items()}
    often = {
        name: write(tmp_path / f"{name}-often.csv", np.repeat(x, w, 0), np.repeat(y, w))
        for name, (x, y, w) in parts.items()
    }
    found = run(tmp_path, "weighted", DENSE.format(**weighted, loss="", more=", weight: w"))
    expected = run(tmp_path, "often", DENSE.format(**often, loss="", more=""))
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)
    torch.testing.assert_close(parameters(tmp_path / "weighted"), parameters(tmp_path / "often"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_balanced_classes_are_those_of_the_weights_that_a_list_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y, w = rows(1)
    path = write(tmp_path / "table.csv", x, y, w)
    sums = np.bincount(y, w)
    listed = (sums.sum() / (3 * sums)).tolist()
    found = [
        run(
            tmp_path,
            name,
            DENSE.format(train=path, val=path, loss=f", init_args: {{weight: {weight}}}", more=", weight: w"),
        )
        for name, weight in (("list", listed), ("balanced", "balanced"))
    ]
    assert f"weights of classes: 0: {listed[0]:.4g}, 1: {listed[1]:.4g}, 2: {listed[2]:.4g}" in capsys.readouterr().err
    assert found[0]["metrics"] == pytest.approx(found[1]["metrics"], rel=1e-5)
    torch.testing.assert_close(parameters(tmp_path / "list"), parameters(tmp_path / "balanced"))


@pytest.mark.processes
@pytest.mark.slow
def test_weighted_clicks_are_learnt_by_the_kernel_evaluated_again_and_predicted_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of weight 0 say the opposite: whoever counts them learns nothing."""
    rng = np.random.default_rng(0)
    a, w = rng.integers(0, 5, 800), rng.integers(0, 2, 800)
    path = tmp_path / "clicks.csv"
    lines = [f"v{one},{weight},{int((one < 2) == (weight > 0))}" for one, weight in zip(a, w, strict=True)]
    path.write_text("\n".join(["a,w,y", *lines]) + "\n")
    found = run(tmp_path, "clicks", SPARSE.format(path=path))
    assert found["update"] == "fused" and found["metrics"]["auc"] == 1.0 and found["metrics"]["log_loss"] < 0.4
    capsys.readouterr()
    assert main.run(["eval", str(tmp_path / "clicks"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["metrics"]
    assert again["auc"] == 1.0 and again["log_loss"] == pytest.approx(found["metrics"]["log_loss"], rel=1e-5)
    (tmp_path / "ask.csv").write_text("a\nv0\nv4\n")
    yes, no = hogwild.load(tmp_path / "clicks").predict(str(tmp_path / "ask.csv")).tolist()
    assert yes > 0.7 and no < 0.3
    assert len(hogwild.load(tmp_path / "clicks").predict(str(path))) == 800


class Weighted(TensorDataset):
    has_sample_weights = True


def of_weights(weights: Any, kind: type[TensorDataset] = Weighted) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return kind(torch.randn(8, 3, generator=generator), torch.as_tensor(weights), torch.ones(8, 1))


def mean_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).abs().mean()


PLAIN = TensorDataset(torch.randn(8, 3), torch.ones(8, 1))
REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "a stream": (of_weights([1.0] * 8), None, nn.MSELoss(), "weights of samples need data that lies in memory"),
    "negative": (
        of_weights([1.0] * 7 + [-2.0]),
        None,
        nn.MSELoss(),
        "data.train: the weight of sample 7 is -2; it mus",
    ),
    "infinite": (
        of_weights([1.0] * 7 + [torch.inf]),
        None,
        nn.MSELoss(),
        "NaN or infinite|the weight of sample 7 is inf",
    ),
    "none counts": (of_weights([0.0] * 8), None, nn.MSELoss(), "the weights of all 8 samples are 0"),
    "a table": (of_weights(torch.ones(8, 1)), None, nn.MSELoss(), r"\(N,\) of floating-point numbers; it is \(8, 1\)"),
    "whole numbers": (of_weights([1] * 8), None, nn.MSELoss(), "it is .* torch.int64"),
    "no inputs": (Weighted(torch.ones(8), torch.ones(8)), None, nn.MSELoss(), "there is none"),
    "only in training": (of_weights([1.0] * 8), PLAIN, nn.MSELoss(), "data.train has weights .* data.val has none"),
    "only in validation": (PLAIN, of_weights([1.0] * 8), nn.MSELoss(), "data.val has weights .* data.train has none"),
    "a loss of one number": (of_weights([1.0] * 8), None, mean_error, "mean_error cannot be weighted by sample"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_cannot_be_are_refused_before_the_start(name: str, tmp_path: Path) -> None:
    train, val, loss, words = REFUSED[name]
    model = nn.Linear(3, 1)
    with pytest.raises(HogwildError, match=words):
        hogwild.train(
            model,
            train,
            loss,
            torch.optim.SGD(model.parameters(), lr=0.1),
            val=val,
            procs=0,
            run_dir=tmp_path / "run",
            feed="stream" if name == "a stream" else "auto",
        )
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("weight", ["[1, 2]", "balanced"])
def test_weights_of_other_classes_than_the_models_are_refused(
    weight: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = rows(1)[:2]
    path = write(tmp_path / "table.csv", x, y.clip(max=1))
    text = DENSE.format(train=path, val=path, loss=f", init_args: {{weight: {weight}}}", more="")
    (tmp_path / "job.yaml").write_text(text.replace("hidden: [4]", "hidden: [4], classes: 3"))
    assert main.run(["train", str(tmp_path / "job.yaml"), "--run-dir", str(tmp_path / "run")]) != 0
    words = "loss.init_args.weight: 2 weights, and the model's output has 3 classes"
    assert words in " ".join(capsys.readouterr().err.split())


pytestmark = pytest.mark.processes


class Stateful(nn.Module):
    """A norm over small numbers, an average of the user's, and counters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.steps = nn.BatchNorm1d(2), nn.Linear(2, 1), 0
        self.register_buffer("average", torch.ones(2))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.total += len(x)
            self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.out(self.norm(x))


@pytest.mark.parametrize("exchange", ["direct", "delta"])
def test_running_statistics_of_two_workers_forget_their_start_as_one_process_does(
    exchange: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """107 updates, as in a job over small embeddings: 0.9 ** 53 of the start, 1, is six times the data's variance."""
    random = torch.Generator().manual_seed(0)
    x = 0.0245 * torch.randn(107 * 32, 2, generator=random)
    model = Stateful()
    result = hogwild.train(
        model,
        TensorDataset(x, x[:, :1].clone()),
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), 0.01),
        procs=2,
        batch_size=32,
        exchange=exchange,
        sync_every=4,
        run_dir=tmp_path / "run",
    )
    assert result.updates == model.norm.num_batches_tracked == 107
    assert float((model.norm.running_var - 0.0006).abs().max()) < 0.0002
    assert float(model.average.abs().max()) < 0.005
    assert float(model.total) == len(x)
    assert "a training forward changes Stateful.steps" in "".join(capfd.readouterr())


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index), float(torch.rand(()))]), torch.zeros(1)


class Recorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)
        self.register_buffer("drawn", torch.zeros(40, 4))
        self.register_buffer("count", torch.zeros(40, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            rows = x[:, 0].long()
            self.drawn[rows, self.count[rows] % 4] = x[:, 1]
            self.count[rows] += 1
        return self.out(x)


@pytest.mark.parametrize("procs", [0, 1])
def test_every_epoch_is_drawn_anew_from_data_that_change(procs: int, tmp_path: Path) -> None:
    model = Recorder()
    settings: dict[str, Any] = {"procs": procs, "batch_size": 10, "epochs": 4, "run_dir": tmp_path / "run"}
    hogwild.train(model, Augmented(), nn.MSELoss(), torch.optim.SGD(model.parameters(), 1e-6), **settings)
    assert model.count.tolist() == [4] * 40
    assert len(model.drawn.unique()) == 160
