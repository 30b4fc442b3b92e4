"""`hogwild.load` of runs of `hogwild.train`, which record the classes of objects and no arguments."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main

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
    assert torch.equal(loaded.predict(TensorDataset(X)), model(X).detach()) and loaded.model is not model
    assert "Small is built with the defaults of its arguments (hidden)" in caplog.text


def test_a_model_that_cannot_be_built_is_the_callers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 1))
    run = train(model, tmp_path / "run")
    mine = nn.Sequential(nn.Linear(3, 1))
    loaded = hogwild.load(run, model=mine)
    assert loaded.model is mine and torch.equal(loaded.predict(TensorDataset(X)), model(X).detach())


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
