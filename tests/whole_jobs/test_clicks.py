"""A table of clicks from the first job to predictions, and the next month's job that goes on with its model."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'hogwild[csv]'")

import hogwild
from hogwild.cli import main

pytestmark = pytest.mark.processes

JOB = """
version: 1
name: clicks
model: {{class_path: hogwild.models.{model}}}
loss: {{class_path: hogwild.losses.LogisticLoss}}
data:
  train:
    class_path: hogwild.data.Clicks
    init_args: {{path: {path}, target: clicked, min_count: 2, buckets: {{price: 6}}, hash: {{user: 500}}}}
  val: {{fraction: 0.2}}
  batch_size: 64
optimizer: {{class_path: torch.optim.Adagrad, init_args: {{lr: 0.1}}}}
train: {{procs: 2, epochs: 8}}
evaluate: {{metrics: [log_loss, auc]}}
"""


def clicks(path: Path, sites: int, seed: int, rows: int = 3000) -> None:
    """A table in which sites and prices go together: neither alone says much."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["clicked", "site", "price", "user"])
        for _ in range(rows):
            site, price = int(rng.integers(sites)), float(rng.random())
            odds = 3.0 if (site % 2 == 0) == (price < 0.5) else -3.0
            table.writerow(
                [int(rng.random() < 1 / (1 + np.exp(-odds))), f"s{site}", round(price, 3), rng.integers(900)]
            )


def trained(folder: Path, name: str, text: str, *more: str) -> dict[str, Any]:
    (folder / f"{name}.yaml").write_text(text)
    assert main.run(["train", str(folder / f"{name}.yaml"), "--run-dir", str(folder / name), *more]) == 0
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return summary


@pytest.mark.slow
def test_clicks_are_learnt_predicted_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clicks(tmp_path / "may.csv", 8, 1)
    job = JOB.format(model="FactorizationMachine", path=tmp_path / "may.csv")
    may = trained(tmp_path, "may", job)
    assert "516 features of 3 columns: site 8, price 6 (buckets), user 500 (hashed)" in capsys.readouterr().err
    assert may["metrics"]["auc"] > 0.9
    model = hogwild.load(tmp_path / "may")
    table = tmp_path / "ask.csv"
    table.write_text("user,price,site\n5,0.1,s0\n5,0.1,s1\n5,,never seen\n")
    answers = model.predict(str(table))
    assert answers[0] > 0.8 and answers[1] < 0.2 and 0.2 < answers[2] < 0.8
    out = tmp_path / "out.csv"
    assert main.run(["predict", str(tmp_path / "may"), str(table), "--out", str(out), "--id", "site"]) == 0
    assert [row.split(",")[0] for row in out.read_text().splitlines()] == ["site", "s0", "s1", "never seen"]
    capsys.readouterr()
    clicks(tmp_path / "june.csv", 10, 2)
    trained(tmp_path, "june", job.replace("may.csv", "june.csv"), "--continue", str(tmp_path / "may"), "train.epochs=1")
    said = capsys.readouterr().err
    assert "features by name: 516 kept, 2 new, 0 gone" in said, said
