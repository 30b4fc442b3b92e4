"""The weights that one has at the end: of the best evaluation where that was asked for, of the last update otherwise;
and a resume, which always trains on from the last update."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.api import TrainResult
from hogwild.cli import main
from hogwild.config.load import load_job
from hogwild.errors import ConfigError
from hogwild.storage import checkpoint
from hogwild.storage.checkpoint_format import checkpoint_name
from tests.helpers.jobs import JOBS

PER_EPOCH = 4  # updates


class Falling:
    """A metric that falls from evaluation to evaluation, whichever process makes it: the first one is the best.

    The calls are counted in a file, since each worker has its own copy of a metric.
    """

    higher_is_better = True

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        with self.calls.open("ab") as file:
            file.write(b".")
        return -float(self.calls.stat().st_size)


def call(
    run: Path, *, epochs: int = 3, resume: Path | None = None, **settings: Any
) -> tuple[TrainResult, nn.Module, Any]:
    evaluate = {
        "metrics": {"falling": Falling(run.with_name("calls of falling"))},
        "monitor": "falling",
        **settings.pop("evaluate", {}),
    }
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"procs": 0, "batch_size": 16, "val": data, "evaluate": evaluate, "epochs": epochs, **settings}
    folder = {"run_dir": run} if resume is None else {"resume": resume}
    return hogwild.train(model, data, nn.CrossEntropyLoss(), rule, **folder, **settings), model, rule


def latest(run: Path) -> str:
    return os.readlink(run / "checkpoints" / "latest")


def same(model: nn.Module, run: Path, updates: int) -> bool:
    state = checkpoint.load(run / "checkpoints" / checkpoint_name(updates))["model"]
    return all(torch.equal(own, state[name]) for name, own in model.state_dict().items())


@pytest.mark.parametrize(
    ("evaluate", "is_best"),
    [
        ({"patience": 2}, True),
        ({"restore_best": True}, True),
        ({"patience": 2, "restore_best": False}, False),
        ({}, False),
    ],
    ids=["with patience", "asked for", "refused", "by default"],
)
@pytest.mark.parametrize("procs", [0, pytest.param(2, marks=[pytest.mark.processes, pytest.mark.whole])])
def test_a_job_ends_with_the_weights_of_its_best_evaluation_where_it_should(
    evaluate: dict[str, Any], is_best: bool, procs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result, model, rule = call(run, evaluate=evaluate, procs=procs)
    updates = PER_EPOCH if is_best else 3 * PER_EPOCH
    assert same(model, run, updates) and not same(model, run, 4 * PER_EPOCH - updates)
    assert result.weights == ("best" if is_best else "last")
    assert latest(run) == result.checkpoint == checkpoint_name(updates)
    assert result.best is not None and (result.best["epoch"], result.best["updates"]) == (1, PER_EPOCH)
    assert result.best["path"] == run / "checkpoints" / checkpoint_name(PER_EPOCH)
    assert (result.metrics["falling"] == result.best["value"]) == is_best
    assert ("weights of the best evaluation: falling" in capsys.readouterr().err) == is_best
    if procs == 0:
        momentum = checkpoint.load(run / "checkpoints" / checkpoint_name(updates))["optimizer"]["state"][0]
        assert torch.equal(next(iter(rule.state.values()))["momentum_buffer"], momentum["momentum_buffer"])


def killed(run: Path) -> None:
    """Leave the run as one that was killed between its last checkpoint and the restored one."""
    (run / "summary.json").unlink()
    (run / "checkpoints" / "latest").unlink()
    (run / "checkpoints" / "latest").symlink_to(checkpoint_name(3 * PER_EPOCH))


@pytest.mark.parametrize("before", [lambda run: None, killed], ids=["after its end", "after a kill at its end"])
def test_a_resume_trains_on_from_the_last_update_and_not_from_the_best(before: Any, tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    call(run, evaluate={"restore_best": True})
    assert latest(run) == checkpoint_name(PER_EPOCH)
    before(run)
    result, model, _ = call(run, epochs=5, resume=run, evaluate={"restore_best": False})
    _, undisturbed, _ = call(whole, epochs=5)
    assert result.updates == 5 * PER_EPOCH and latest(run) == checkpoint_name(5 * PER_EPOCH)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), undisturbed.parameters(), strict=True))
    assert call(run, epochs=5, resume=run, evaluate={"restore_best": True})[0].weights == "best"
    assert latest(run) == checkpoint_name(PER_EPOCH)


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_best_checkpoint_that_cannot_be_read_is_said_and_the_last_weights_stay(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    call(run)
    best = run / "checkpoints" / checkpoint_name(PER_EPOCH)
    if how == "damaged":
        (best / "state.pt").write_bytes(b"")
    else:
        best.rename(tmp_path / "moved")
    result, model, _ = call(run, resume=run, evaluate={"restore_best": True})
    assert (result.state, result.weights) == ("succeeded", "last")
    assert same(model, run, 3 * PER_EPOCH) and latest(run) == checkpoint_name(3 * PER_EPOCH)
    assert "the weights of the best evaluation cannot be restored: " in capsys.readouterr().err


def test_the_last_line_of_a_summary_says_which_weights_one_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", str(JOBS / "judging.yaml"), "--procs", "0", "train.epochs=2", "--no-progress"]
    grows = ["optimizer.init_args.lr=0.0", "evaluate.monitor=loss", "evaluate.every_epochs=1"]
    for name, more, words in (
        ("best", ["evaluate.restore_best=true"], "  weights: best evaluation, val loss "),
        ("last", [], "  weights: last update; best evaluation, val loss "),
    ):
        assert main.run([*argv, *grows, *more, "--run-dir", str(tmp_path / name)]) == 0
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith(words) and line.endswith(", epoch 1 → checkpoints/best"), line


def test_what_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.restore_best: must be auto or false where checkpoint\.keep_best"):
        call(tmp_path / "run", evaluate={"restore_best": True}, checkpoint={"keep_best": False})
    with pytest.raises(ConfigError, match=r"evaluate\.restore_best: needs data\.val"):
        call(tmp_path / "run", evaluate={"restore_best": True}, val=None)
    call(tmp_path / "run", evaluate={"patience": 2}, checkpoint={"keep_best": False})
    assert load_job(tmp_path / "run" / "resolved.yaml").evaluate.restore_best == "auto"
