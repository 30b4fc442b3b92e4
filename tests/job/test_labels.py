"""The labels of all samples are compared with what the loss takes, before the start, on every way in: a loss computes a
number from any label, so 1 and 2 would be positive both, with an accuracy of 1. And a target that broadcasts against
the output is an error of the trial: torch only warns, and such a job learns the mean."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import hogwild
from hogwild.api import job_of
from hogwild.cli import main
from hogwild.errors import DataError, ModelError
from hogwild.job.build import from_objects
from hogwild.job.parts import Parts
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import Labels
from hogwild.planning.device_placement import planned

ROWS = 12


class Items(Dataset[Any]):
    def __init__(self, y: Tensor) -> None:
        self.x, self.y = torch.randn(len(y), 2), y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


class Stream(IterableDataset[Any]):
    def __init__(self, y: Tensor) -> None:
        self.items = Items(y)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.items[row] for row in range(len(self.items)))


class Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


def parts_of(loss: Any, y: Any, val: Any = None, *, outputs: int = 0, **settings: Any) -> Parts:
    model = nn.Linear(2, outputs) if outputs else Flat(2, 1)
    if isinstance(loss, nn.BCELoss):
        model = nn.Sequential(model, nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, held = (TensorDataset(torch.randn(len(one), 2), one) if isinstance(one, Tensor) else one for one in (y, val))
    split = isinstance(held, dict)
    job = job_of(model, data, loss, optimizer, held, settings)
    return from_objects(planned(job), model, loss, optimizer, data, job.data.val if split else held)


def train_with(data: Any, transform: Any, run: Path) -> int:
    model = Flat(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hogwild.train(model, data, LogisticLoss(), optimizer, transform=transform, procs=0, run_dir=run).updates


def cycled(*labels: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([labels[row % len(labels)] for row in range(ROWS)], dtype=dtype)


whole = torch.int64
REFUSED: dict[str, tuple[Any, Tensor, int, str]] = {
    "logistic 1, 2": (LogisticLoss(), cycled(1, 2), 0, "sample 1 is 2; LogisticLoss takes two labels, 0 and 1, or -1"),
    "logistic 2, 4": (LogisticLoss(), cycled(2, 4), 0, "sample 0 is 2; LogisticLoss takes two labels"),
    "logistic 0, 1, 2": (LogisticLoss(), cycled(0, 1, 2), 0, "sample 2 is 2; LogisticLoss"),
    "logistic -1, 0, 1": (LogisticLoss(), cycled(-1, 0, 1), 0, "LogisticLoss takes two labels"),
    "logistic 0.3": (LogisticLoss(), cycled(0, 1, 0.3), 0, "sample 2 is 0.3; LogisticLoss"),
    "hinge 1, 2": (HingeLoss(), cycled(1, 2), 0, "sample 1 is 2; HingeLoss"),
    "hinge, bytes": (HingeLoss(), cycled(0, 1, 255, dtype=torch.uint8), 0, "sample 2 is 255; HingeLoss"),
    "bce 1, 2": (nn.BCEWithLogitsLoss(), cycled(1, 2), 0, "sample 1 is 2; BCEWithLogitsLoss takes numbers from 0 to 1"),
    "bce -1, 1": (nn.BCEWithLogitsLoss(), cycled(-1, 1), 0, "sample 0 is -1; BCEWithLogitsLoss"),
    "bce function": (F.binary_cross_entropy_with_logits, cycled(1, 2), 0, "sample 1 is 2; BCEWithLogitsLoss"),
    "bce of probabilities": (nn.BCELoss(), cycled(0, 1, 1.5), 0, "sample 2 is 1.5; BCELoss"),
    "several answers": (
        nn.MultiLabelSoftMarginLoss(),
        cycled(0, 1, 2).reshape(-1, 2),
        2,
        "sample 1 is 2; MultiLabelSoftMarginLoss takes numbers from 0 to 1",
    ),
    "soft margin 0, 1": (nn.SoftMarginLoss(), cycled(0, 1), 0, "sample 0 is 0; SoftMarginLoss takes two labels"),
    "hinge embedding 0, 1": (nn.HingeEmbeddingLoss(), cycled(1, 0), 0, "sample 1 is 0; HingeEmbeddingLoss"),
    "soft margin function": (F.soft_margin_loss, cycled(0, 1), 0, "sample 0 is 0; SoftMarginLoss"),
    "poisson": (nn.PoissonNLLLoss(), cycled(3, 0, -1), 0, "sample 2 is -1; PoissonNLLLoss takes numbers from 0 on"),
    "poisson function": (F.poisson_nll_loss, cycled(3, -1), 0, "sample 1 is -1; PoissonNLLLoss"),
    "kl": (nn.KLDivLoss(reduction="batchmean"), cycled(0, -1), 0, "sample 1 is -1; KLDivLoss takes numbers from 0 on"),
    "kl of logarithms": (nn.KLDivLoss(log_target=True), cycled(-1, 1), 0, "sample 1 is 1; KLDivLoss takes numbers"),
    "classes 1, 2": (nn.CrossEntropyLoss(), cycled(1, 2, dtype=whole), 2, r"sample 1 is 2; .*must be in \[0, 1\]"),
    "nll": (nn.NLLLoss(), cycled(0, -1, dtype=whole), 2, "sample 1 is -1; "),
    "all ignored": (nn.CrossEntropyLoss(), cycled(-100, dtype=whole), 2, "all labels are -100, which CrossEntropyLoss"),
    "bytes of classes": (nn.NLLLoss(), cycled(0, 1, 156, dtype=torch.uint8), 2, "sample 2 is 156; "),  # -100 + 256
    "multi margin": (nn.MultiMarginLoss(), cycled(0, 1, 2, dtype=whole), 2, "sample 2 is 2; "),
    "several": (nn.MultiLabelMarginLoss(), cycled(0, -1, 2, -1, dtype=whole).reshape(-1, 2), 2, "sample 1 is 2"),
    "classes as floats": (nn.CrossEntropyLoss(), cycled(0, 1), 2, r"the targets are \(12,\) float32; CrossEntropyLoss"),
    "probabilities": (nn.CrossEntropyLoss(), cycled(0.5, 50).reshape(-1, 2), 2, "sample 0 is 50; CrossEntropyLoss"),
    "one output": (nn.CrossEntropyLoss(), cycled(0, 1).reshape(-1, 1), 1, "CrossEntropyLoss of one output is 0 for"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_label_that_the_loss_does_not_take_is_an_error(name: str) -> None:
    loss, y, outputs, said = REFUSED[name]
    with pytest.raises(DataError, match=f"data.train: .*{said}") as failed:
        parts_of(loss, y, outputs=outputs)
    assert failed.value.code == "data/labels"


TAKEN: dict[str, tuple[Any, Tensor, int]] = {
    "logistic": (LogisticLoss(), cycled(0, 1), 0),
    "logistic, signs": (LogisticLoss(), cycled(-1, 1), 0),
    "logistic, whole": (LogisticLoss(), cycled(-1, 1, dtype=torch.int8), 0),
    "logistic, bool": (LogisticLoss(), cycled(0, 1, dtype=torch.bool), 0),
    "soft": (nn.BCEWithLogitsLoss(), cycled(0.3, 1), 0),
    "signs": (nn.SoftMarginLoss(), cycled(-1, 1), 0),
    "counts": (nn.PoissonNLLLoss(), cycled(0, 7.5), 0),
    "ignored": (nn.CrossEntropyLoss(), cycled(0, -100, 1, dtype=whole), 2),
    "another ignored": (nn.CrossEntropyLoss(ignore_index=9), cycled(0, 9, 1, dtype=whole), 2),
    "probabilities": (nn.CrossEntropyLoss(), cycled(0.25, 0.75).reshape(-1, 2), 2),
    "any number": (nn.MSELoss(), cycled(-5, 40), 0),
}


@pytest.mark.parametrize("name", TAKEN)
def test_labels_that_the_loss_takes_are_no_news(name: str) -> None:
    loss, y, outputs = TAKEN[name]
    assert not [note for note in parts_of(loss, y, outputs=outputs).notes if "label" in note]


@pytest.mark.parametrize("loss", [LogisticLoss(), nn.BCEWithLogitsLoss(), HingeLoss()])
def test_labels_of_one_class_are_said(loss: nn.Module) -> None:
    notes = parts_of(loss, cycled(1), cycled(0, 1)).notes
    assert "data.train: all 12 labels are 1: there is one class only" in notes
    assert not any("data.val" in note for note in notes)
    assert "data.val: all 12 labels are 0: there is one class only" in parts_of(loss, cycled(0, 1), cycled(0)).notes
    classes = parts_of(nn.CrossEntropyLoss(), cycled(1, -100, dtype=whole), outputs=2).notes
    assert "data.train: all 12 labels are 1: there is one class only" in classes


def test_classes_that_begin_with_1_are_said() -> None:
    loss = nn.CrossEntropyLoss()
    said = "data.train: the lowest label is 1: no sample is of class 0, the first output"
    assert said in parts_of(loss, cycled(1, 2, dtype=whole), outputs=3).notes
    notes = parts_of(loss, cycled(0, 1, 2, dtype=whole), cycled(1, 2, dtype=whole), outputs=3).notes
    assert not any("lowest" in note for note in notes), "validation data may lack a class"


MAKE: dict[str, Callable[[Tensor], Any]] = {"tensors": lambda y: y, "items": Items, "stream": Stream}


@pytest.mark.parametrize("way", MAKE)
@pytest.mark.parametrize("role", ["train", "val", "a fraction"])
def test_labels_are_checked_on_every_way_in_and_in_every_role(way: str, role: str, tmp_path: Path) -> None:
    y = cycled(1, 2).repeat(5)
    if (way, role) == ("stream", "a fraction"):
        return
    train = MAKE[way](cycled(0, 1).repeat(5) if role == "val" else y)
    val = MAKE[way](y) if role == "val" else {"fraction": 0.5} if role == "a fraction" else None
    what = "data.val" if role == "val" else "data.train"
    model = Flat(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, val = (TensorDataset(torch.randn(len(y), 2), one) if isinstance(one, Tensor) else one for one in (train, val))
    with pytest.raises(DataError, match=rf"{what}: .*(label of sample \d+ is|has label) 2; LogisticLoss") as failed:
        hogwild.train(model, data, LogisticLoss(), optimizer, val=val, procs=0, batch_size=4, run_dir=tmp_path / "run")
    assert failed.value.code == "data/labels"


def test_what_a_transform_makes_of_the_labels_is_the_transforms(tmp_path: Path) -> None:
    def from_zero(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y - 1

    def louder(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y

    data = Items(cycled(1, 2))
    assert train_with(data, from_zero, tmp_path / "first")
    with pytest.raises(DataError, match="label of sample 1 is 2"):
        train_with(data, louder, tmp_path / "second")


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_labels_that_only_a_metric_reads_as_yes_and_no_are_checked_too(metric: str) -> None:
    def own(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    y, evaluate = cycled(1, 2, dtype=whole), {"metrics": [metric]}
    with pytest.raises(DataError, match=r"label of sample 1 is 2; evaluate.metrics takes two labels"):
        parts_of(own, y, y, evaluate=evaluate)
    assert parts_of(own, y - 1, y - 1, evaluate=evaluate).panel.names == (metric,)
    assert parts_of(own, y, y).panel.names == ()


FILES = {
    "LibSvm": (
        "rows.svm",
        lambda y: "".join(f"{label} 1:1 2:{row}\n" for row, label in enumerate(y)),
        "{path: rows.svm}",
    ),
    "Csv": (
        "rows.csv",
        lambda y: "a,b,y\n" + "".join(f"{row % 3},{row}.5,{label}\n" for row, label in enumerate(y)),
        "{path: rows.csv, target: y}",
    ),
    "Clicks": (
        "rows.csv",
        lambda y: "a,b,y\n" + "".join(f"u{row % 3},v{row % 2},{label}\n" for row, label in enumerate(y)),
        "{path: rows.csv, target: y}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*FILES, "Npz"])
@pytest.mark.parametrize("role", ["train", "val"])
def test_labels_of_every_file_are_checked(
    kind: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {}
    for name, y in (("good", [0, 1] * 6), ("bad", [2, 4] * 6)):
        (tmp_path / name).mkdir()
        if kind == "Npz":
            x = np.random.default_rng(0).normal(size=(12, 2)).astype("f4")
            np.savez(tmp_path / name / "rows.npz", x=x, y=np.array(y, "f4")[:, None])
            paths[name] = f"{{class_path: hogwild.data.Npz, init_args: {{path: {tmp_path}/{name}/rows.npz}}}}"
            continue
        file, text, given = FILES[kind]
        (tmp_path / name / file).write_text(text(y))
        given = given.replace("path: ", f"path: {tmp_path}/{name}/")
        paths[name] = f"{{class_path: hogwild.data.{kind}, init_args: {given}}}"
    is_sparse = kind in ("LibSvm", "Clicks")
    model = "hogwild.models.SparseLinear" if is_sparse else "hogwild.models.Mlp, init_args: {hidden: []}"
    loss = "hogwild.losses.LogisticLoss" if is_sparse else "torch.nn.BCEWithLogitsLoss"
    train, val = (paths["good"], paths["bad"]) if role == "val" else (paths["bad"], paths["good"])
    Path("job.yaml").write_text(
        f"model: {{class_path: {model}}}\nloss: {{class_path: {loss}}}\n"
        f"data: {{train: {train}, val: {val}}}\n"
        "optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\n"
    )
    assert main.run(["train", "job.yaml", "--dry-run"]) == 1
    err = capsys.readouterr().err
    assert f"data.{role}: the label of sample 0" in err and "is 2; " in err and "code data/labels" in err


@given(
    st.sampled_from([(0, 1), (-1, 1), (1, 2), (2, 4), (-1, 0), (0, 2)]),
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.sampled_from([torch.float32, torch.int64, torch.float64]),
)
def test_two_labels_are_taken_if_and_only_if_a_metric_and_the_loss_part_them(
    pair: tuple[int, int], chosen: list[bool], dtype: torch.dtype
) -> None:
    y = torch.tensor([pair[yes] for yes in chosen], dtype=dtype)
    labels = Labels.of(LogisticLoss(), (3,), y)
    assert labels is not None
    wrong = labels.wrong(y)
    if wrong is None:
        yes = (y > 0).tolist()
        assert (y > 0.5).tolist() == yes
        assert yes == chosen or len(set(chosen)) == 1
    else:
        row, value = wrong
        assert y[row] == value and (pair not in ((0, 1), (-1, 1)))


class Stepping(nn.Linear):
    def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> Tensor:
        return F.mse_loss(self(batch[0]), batch[1])


class Judging(nn.Linear):
    def evaluation_step(self, batch: tuple[Tensor, ...], loss: Any) -> tuple[Tensor, Tensor]:
        return self(batch[0]), batch[1]


def own(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def careful(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(-1) - target.squeeze(-1)).square().mean()


def inside(output: Tensor, target: Tensor) -> Tensor:
    return 2 * F.l1_loss(output, target)


def trained_on(model: nn.Module, loss: Any, y: Tensor, run: Path, **given: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(len(y), 2), y)
    return hogwild.train(model, data, loss, optimizer, procs=0, run_dir=run, **given)


ELEMENTS = [nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.PoissonNLLLoss(), HingeLoss()]
ELEMENTS += [LogisticLoss(), nn.BCEWithLogitsLoss()]
LOSSES = [*ELEMENTS, nn.SoftMarginLoss(), nn.HingeEmbeddingLoss(), F.mse_loss, F.poisson_nll_loss, own, inside]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "__name__", type(loss).__name__))
@pytest.mark.parametrize("flat", ["the output", "the target"])
def test_a_target_that_broadcasts_is_an_error_with_both_shapes(loss: Any, flat: str, tmp_path: Path) -> None:
    y = torch.ones(8, 1) if flat == "the output" else torch.ones(8)
    model = Flat(2, 1) if flat == "the output" else nn.Linear(2, 1)
    with pytest.raises(ModelError, match=r"(?s)\(?3,\)?.*\[?3, 1\]?|\[?3, 1\]?.*\(?3,\)?") as failed:
        trained_on(model, loss, y, tmp_path / "run")
    assert failed.value.code == "model/broadcast"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ELEMENTS, ids=lambda loss: type(loss).__name__)
def test_one_target_for_several_outputs_is_an_error_as_well(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as failed:
        trained_on(nn.Linear(2, 4), loss, torch.ones(8, 1), tmp_path / "run")
    assert failed.value.code == "model/broadcast"


@pytest.mark.parametrize("kind", [Stepping, Judging])
def test_a_step_of_the_models_own_is_no_exception(kind: type[nn.Linear], tmp_path: Path) -> None:
    y = torch.ones(8)
    with pytest.raises(ModelError) as failed:
        trained_on(kind(2, 1), nn.MSELoss(), y, tmp_path / "run", val=TensorDataset(torch.randn(8, 2), y))
    assert failed.value.code == "model/broadcast"


FORMING = {
    "both": careful,
    "squeezed": lambda output, target: (output.squeeze() - target).square().mean(),
    "a column": lambda output, target: (output[:, 0] - target).abs().mean(),
    "unsqueezed": lambda output, target: F.mse_loss(output, target.unsqueeze(1)),
    "standardised": lambda output, target: (output.flatten() - (target - target.mean()) / 2).square().mean(),
    "pairs": lambda output, target: F.softplus((output.T - output) * (target[:, None] - target).sign()).mean(),
    "random": lambda output, target: ((output.squeeze() + torch.rand(len(target)) - target) ** 2).mean(),
    "without the target": lambda output, target: output.square().mean() + 0 * target.sum(),
    "weighted": lambda output, target: (target.abs() * (output[..., 0] - target) ** 2).sum() / target.abs().sum(),
}


@pytest.mark.parametrize("loss", FORMING.values(), ids=FORMING)
def test_a_loss_that_forms_the_shapes_itself_is_none(loss: Any, tmp_path: Path) -> None:
    result = trained_on(nn.Linear(2, 1), loss, torch.ones(8), tmp_path / "first")
    assert result.updates == 1 and not result.warnings


def test_class_numbers_have_another_shape_than_the_output(tmp_path: Path) -> None:
    assert trained_on(nn.Linear(2, 3), nn.CrossEntropyLoss(), torch.ones(3).long(), tmp_path / "second").updates == 1
