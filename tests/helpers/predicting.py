"""For tests of predictions: commands run in this process, and small models trained by them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli import main

Say = Callable[..., tuple[int, list[str], str]]


def commands(capsys: pytest.CaptureFixture[str]) -> Say:
    """Return what runs a command: its exit status, lines and messages."""

    def run(*argv: object) -> tuple[int, list[str], str]:
        status = main.run([str(one) for one in argv])
        found = capsys.readouterr()
        return status, found.out.splitlines(), found.err

    return run


def linear(inputs: int, outputs: int) -> dict[str, Any]:
    return {"class_path": "torch.nn.Linear", "init_args": {"in_features": inputs, "out_features": outputs}}


def train(
    say: Say, folder: Path, data: str, arguments: Mapping[str, object], loss: str, model: Mapping[str, object]
) -> Path:
    """A small model, trained for one epoch in this process."""
    described = {
        "model": model,
        "loss": {"class_path": loss},
        "data": {"train": {"class_path": f"hogwild.data.{data}", "init_args": dict(arguments)}, "batch_size": 8},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}},
        "train": {"procs": 0, "epochs": 1},
        "log": {"tensorboard": False},
    }
    (folder / "job.yaml").write_text(json.dumps(described))  # JSON is YAML
    status, _, said = say("train", folder / "job.yaml", "--run-dir", folder / "run")
    assert status == 0, said
    return folder / "run"
