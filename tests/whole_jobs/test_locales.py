"""Whole jobs where the locale is POSIX and Python's UTF-8 mode is off: standard streams, files without an encoding and
names of files are ASCII there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import Job
from tests.helpers.predicting import linear

pytestmark = pytest.mark.processes

POSIX = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
PRINTING = """import torch


class Printing(torch.nn.Linear):
    def forward(self, x):
        print("größer → 0")
        return super().forward(x)
"""


@pytest.mark.whole
@pytest.mark.parametrize("procs", [0, 2])
def test_names_beyond_ascii_end_no_command_that_would_end_well(
    tmp_path: Path, start_job: Callable[..., Job], procs: int
) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()
    (folder / "maße.csv").write_text("größe,höhe,preis€\n" + "1,2,3\n4,5,7\n" * 20, encoding="utf-8")
    (folder / "printing.py").write_text(PRINTING, encoding="utf-8")
    train = {"class_path": "hogwild.data.Csv", "init_args": {"path": "maße.csv", "target": "preis€"}}
    described = {
        "name": "x",
        "model": {**linear(2, 1), "class_path": "printing.Printing"},
        "loss": {"class_path": "torch.nn.MSELoss"},
        "data": {"train": train, "val": {"fraction": 0.2}, "batch_size": 4},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.01}},
        "train": {"procs": procs, "epochs": 2},
    }
    (folder / "job.yaml").write_text(json.dumps(described))
    run = folder / "läuft"
    for arguments in (
        ("train", "job.yaml", "--run-dir", "läuft", "name=größe→"),
        ("train", "--resume", "läuft", "train.epochs=3"),
        ("predict", "läuft", "maße.csv", "--out", "läuft.csv"),
        ("report", "läuft"),
        ("status", "läuft"),
    ):
        ended = start_job(folder, *arguments, run_dir=run, extra=POSIX).wait()
        assert ended.status == 0, (arguments, ended.stderr)
    assert "gr\\xf6\\xdfe\\u2192" in ended.stdout  # the name of the job
    assert len((folder / "läuft.csv").read_text().splitlines()) == 41
    summary = json.loads((run / "summary.json").read_text())
    assert summary["state"] == "succeeded" and summary["restarts"] == 0
