"""A target that broadcasts against the output is an error of the trial: torch only warns, and such a job learns the
mean."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import ModelError
from hogwild.losses import HingeLoss, LogisticLoss


class Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


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


def trained(model: nn.Module, loss: Any, y: Tensor, run: Path, **given: Any) -> Any:
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
        trained(model, loss, y, tmp_path / "run")
    assert failed.value.code == "model/broadcast"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ELEMENTS, ids=lambda loss: type(loss).__name__)
def test_one_target_for_several_outputs_is_an_error_as_well(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as failed:
        trained(nn.Linear(2, 4), loss, torch.ones(8, 1), tmp_path / "run")
    assert failed.value.code == "model/broadcast"


@pytest.mark.parametrize("kind", [Stepping, Judging])
def test_a_step_of_the_models_own_is_no_exception(kind: type[nn.Linear], tmp_path: Path) -> None:
    y = torch.ones(8)
    with pytest.raises(ModelError) as failed:
        trained(kind(2, 1), nn.MSELoss(), y, tmp_path / "run", val=TensorDataset(torch.randn(8, 2), y))
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
    result = trained(nn.Linear(2, 1), loss, torch.ones(8), tmp_path / "first")
    assert result.updates == 1 and not result.warnings


def test_class_numbers_have_another_shape_than_the_output(tmp_path: Path) -> None:
    assert trained(nn.Linear(2, 3), nn.CrossEntropyLoss(), torch.ones(3).long(), tmp_path / "second").updates == 1
