"""`hogwild.load` of runs of `hogwild.train`, which record the classes of objects and no arguments."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.data import Clicks
from hogwild.losses import LogisticLoss
from hogwild.models import FieldFactorizationMachine

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
