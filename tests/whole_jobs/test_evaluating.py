"""Evaluations of real jobs: the metrics that were asked for, the best checkpoint, patience, and the same numbers once
more from `hogwild eval`."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.cli import main
from hogwild.errors import BuildError
from hogwild.models import MatrixFactorization
from tests.helpers.jobs import JOBS, Ended, Job, in_turn

ASKED = "evaluate.metrics=[accuracy, top3, auc, macro_f1, log_loss, perplexity, judging.gini]"
JUDGING = str(JOBS / "judging.yaml")
DIGITS = ["train.threads=1", "train.epochs=3", "checkpoint.every_s=null"]
GROWS = [
    "optimizer.init_args.lr=0.0",
    "evaluate.monitor=loss",
]  # nothing is learnt: the first evaluation stays the best


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    """Small jobs, one after the other in one process; all but two train in it."""
    jobs = {
        "two": ["train.procs=2", *DIGITS, ASKED, "evaluate.every_epochs=1", "evaluate.monitor=gini"],
        "inline": ["train.procs=0", *DIGITS, ASKED, "evaluate.every_epochs=3"],
        "updates": ["train.procs=0", *DIGITS, "evaluate.every_epochs=null", "evaluate.every_updates=100"],
        "patience": [
            "train.procs=0",
            *DIGITS,
            *GROWS,
            "train.epochs=50",
            "evaluate.patience=2",
            "checkpoint.keep=1",
            "checkpoint.every_updates=100",
        ],
        "three": ["train.procs=0", *DIGITS, "evaluate.every_epochs=1"],
        "no best": ["train.procs=0", *DIGITS, "evaluate.every_epochs=1", "checkpoint.keep_best=false"],
    }
    return in_turn(jobs_folder / "evaluating", {name: [JUDGING, *argv] for name, argv in jobs.items()})


def evaluations(job: Ended) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "evaluation"]


def best_of(job: Ended) -> str:
    return os.readlink(job.run_dir / "checkpoints" / "best")


def run_eval(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main.run(["eval", *argv, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


@pytest.mark.processes
def test_every_metric_asked_for_is_reported_in_its_order(ended: dict[str, Ended]) -> None:
    names = ["loss", "accuracy", "top3", "auc", "macro_f1", "log_loss", "perplexity", "gini"]
    for job in (ended["two"], ended["inline"]):
        assert job.status == 0 and list(job.summary["metrics"]) == names
        values = job.summary["metrics"]
        assert values["log_loss"] == pytest.approx(values["loss"], rel=1e-6)
        assert values["accuracy"] < values["top3"] <= 1 and 0.5 < values["auc"] < 1 and 0 < values["gini"] < 1


@pytest.mark.processes
def test_eval_gives_the_numbers_of_the_training_and_writes_the_predictions(
    ended: dict[str, Ended], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(JOBS)
    job = ended["two"]
    for number, evaluation in enumerate(evaluations(job)):
        name = f"update-{evaluation['updates']:09d}"
        if not (job.run_dir / "checkpoints" / name).exists():
            assert name != best_of(job)
            continue
        answer = run_eval(capsys, str(job.run_dir / "checkpoints" / name))
        recorded = {key: evaluation[key] for key in job.summary["metrics"]}
        assert answer["metrics"] == pytest.approx(recorded, rel=1e-6), f"evaluation {number}"
        assert answer["recorded"] == pytest.approx(recorded, rel=1e-12)
    answer = run_eval(capsys, str(job.run_dir), "--predictions", str(tmp_path / "all.npz"))
    assert Path(str(answer["checkpoint"])).name == best_of(job)
    with np.load(tmp_path / "all.npz") as arrays:
        outputs, targets, predicted = arrays["outputs"], arrays["targets"], arrays["predicted"]
    assert outputs.shape == (360, 10) and (predicted == outputs.argmax(1)).all()
    assert float((predicted == targets).mean()) == pytest.approx(answer["metrics"]["accuracy"])  # type: ignore[index]
    run_eval(capsys, str(job.run_dir), "--which", "latest", "--predictions", str(tmp_path / "all.csv"))
    with open(tmp_path / "all.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 360 and list(rows[0])[:4] == ["sample", "target", "predicted", "output_0"]
    assert [int(row["target"]) for row in rows] == targets.tolist()


@pytest.mark.processes
def test_the_best_checkpoint_is_the_monitored_metrics_best(ended: dict[str, Ended]) -> None:
    job = ended["two"]
    best = max(evaluations(job), key=lambda evaluation: evaluation["gini"])
    assert job.summary["best"]["updates"] == best["updates"]
    assert best_of(job) == f"update-{best['updates']:09d}"


@pytest.mark.processes
def test_evaluations_come_every_so_many_updates_and_at_the_end(ended: dict[str, Ended]) -> None:
    assert [evaluation["updates"] for evaluation in evaluations(ended["updates"])] == [100, 200, 270]


@pytest.mark.processes
def test_patience_ends_a_job_as_succeeded_and_the_best_checkpoint_outlives_the_pruning(ended: dict[str, Ended]) -> None:
    job = ended["patience"]
    assert job.reason == ("succeeded", "patience")
    found = [evaluation["updates"] for evaluation in evaluations(job)]
    assert len(found) == 3 and job.summary["best"]["updates"] == found[0]
    there = {path.name for path in (job.run_dir / "checkpoints").iterdir()}
    last = {"latest", f"update-{found[2]:09d}"}
    assert there >= {"best", f"update-{found[0]:09d}", *last} and len(there) == 5  # keep: 1, the one before, the best


@pytest.mark.processes
def test_without_keep_best_no_evaluation_writes_a_checkpoint(ended: dict[str, Ended]) -> None:
    there = {path.name for path in (ended["no best"].run_dir / "checkpoints").iterdir()}
    assert there == {"latest", "update-000000270"}


@pytest.mark.processes
def test_a_run_that_goes_on_remembers_its_best_and_its_patience(
    ended: dict[str, Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ended["patience"]
    first = job.summary["best"]["updates"]
    assert main.run(["train", "--resume", str(job.run_dir), "evaluate.patience=3", "--no-progress"]) == 0
    capsys.readouterr()
    assert job.reason == ("succeeded", "patience")
    assert len(evaluations(job)) == 4 and job.summary["best"]["updates"] == first
    assert best_of(job) == f"update-{first:09d}"


@pytest.mark.processes
def test_a_run_that_goes_back_has_the_best_of_what_is_left(
    ended: dict[str, Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ended["three"]
    assert best_of(job) == "update-000000270"
    (job.run_dir / "checkpoints" / best_of(job) / "state.pt").write_bytes(b"damaged")
    assert main.run(["train", "--resume", str(job.run_dir), "train.epochs=2", "--no-progress"]) == 0
    capsys.readouterr()
    assert best_of(job) == "update-000000180" and job.summary["best"]["updates"] == 180


@pytest.mark.processes
@pytest.mark.whole
def test_a_worker_that_dies_while_it_scores_costs_nothing(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    argv = [JUDGING, "train.procs=1", *DIGITS, "evaluate.metrics=[judging.Dying]", "evaluate.every_epochs=3"]
    job = start_job(tmp_path / "job", *argv, extra={"JUDGING_DIARY": str(tmp_path)})
    ended = job.wait()
    assert ended.status == 0 and ended.summary["metrics"]["Dying"] == 360 and ended.summary["restarts"] == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "restarts"), [([], 2), (["train.procs=0", "evaluate.every_epochs=1"], 0)], ids=["dying", "alone"]
)
def test_metrics_of_all_items_count_each_slice_of_each_evaluation_once(
    settings: list[str],
    restarts: int,
    tmp_path: Path,
    start_job: Callable[..., Job],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers die in the middle of a kernel, after it, after items are marked as covered; alone, items are marked from
    an earlier evaluation."""
    pytest.importorskip("numba")
    random = np.random.default_rng(1)
    pairs = np.argwhere(random.random((3000, 600)) < 0.1 * random.random(600))
    (tmp_path / "plays.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in pairs))
    argv = [str(JOBS / "mortal.yaml"), "--data-dir", str(tmp_path), *settings]
    ended = start_job(tmp_path / "job", *argv, extra={"MORTAL_DIARY": str(tmp_path)}).wait()
    assert ended.status == 0 and ended.summary["restarts"] >= restarts, ended.summary
    monkeypatch.syspath_prepend(JOBS)
    answer = run_eval(capsys, str(ended.run_dir), "--which", "latest", "--data-dir", str(tmp_path))
    names = ["loss", "precision@10", "recall@10", "ndcg@10", "map@10", "mrr@10", "auc", "coverage@5"]
    assert list(ended.summary["metrics"]) == names
    assert answer["metrics"] == pytest.approx(ended.summary["metrics"], rel=1e-12)
    assert ended.summary["metrics"]["auc"] > 0.6


@pytest.mark.processes
def test_metrics_that_end_whoever_computes_them_fail_the_job_and_are_named(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    metrics = ["evaluate.metrics=[judging.Dying]", "evaluate.every_epochs=3", "supervise.max_item_attempts=1"]
    ended = start_job(
        tmp_path / "job", JUDGING, "train.procs=1", *DIGITS, *metrics, extra={"JUDGING_DIARY": str(tmp_path)}
    ).wait()
    assert ended.status == 1 and ended.summary["error_code"] == "train/unevaluable"
    assert "computing Dying from the outputs of data.val crashed 1 worker " in ended.summary["error"]


@pytest.mark.parametrize(
    ("settings", "status", "code", "words"),
    [
        (["evaluate.metrics=[judging.refuses]"], 1, "model/metric", "refuses: ValueError: needs more than this"),
        (["evaluate.metrics=[rmse]"], 1, "model/metric", "rmse: output and target must have the same shape"),
        (["evaluate.metrics=[top11]"], 1, "model/metric", "top11: there are only 10 classes"),
        (
            ["evaluate.metrics=[judging.seconds]"],
            2,
            "config/metric-name",
            "evaluate.metrics[0]: evaluation records already have a field of this name",
        ),
        (["evaluate.metrics=[judging.nothing]"], 2, "config/no-such-name", "has no 'nothing'"),
        (
            ["evaluate.metrics=[judging.sideless]", "evaluate.monitor=sideless"],
            2,
            "config/metric-direction",
            "unknown whether higher or lower is better",
        ),
        (["evaluate.patience=3", "data.val=null"], 2, "config/needs-validation", "evaluate.patience: needs data.val"),
        (["evaluate.target={rmse: 1.0}"], 2, "config/unknown-metric", "it reports loss, accuracy"),
    ],
)
def test_metrics_that_cannot_be_are_refused_before_anything_starts(
    settings: list[str],
    status: int,
    code: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(JOBS)
    monkeypatch.chdir(tmp_path)
    assert main.run(["train", JUDGING, "train.procs=0", *settings]) == status
    said = capsys.readouterr().err
    assert words in said and code in said
    assert list(tmp_path.iterdir()) == []


class Odd(nn.Module):
    """No metric is known for it."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().sqrt().mean()


def test_a_loss_that_is_the_only_figure_is_named_and_stands_beside_the_first_one(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.randn(64, 2), torch.ones(64, 1))
    settings: dict[str, Any] = {"procs": 0, "batch_size": 8}
    rule = torch.optim.SGD(model.parameters(), lr=0.05)
    hogwild.train(model, data, Odd(), rule, val=data, epochs=2, run_dir=tmp_path / "run", **settings)
    hogwild.train(model, data, Odd(), rule, val=data, epochs=3, resume=tmp_path / "run", **settings)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "evaluation"]
    said = (tmp_path / "run" / "logs" / "supervisor.log").read_text().splitlines()
    told = [line.partition("val ")[2] for line in said if "  val loss" in line]
    assert told == [f"loss {loss:.4g}  (Odd; first {losses[0]:.4g})" for loss in losses] and len(told) == 3


@pytest.mark.parametrize("settings", [{}, {"accumulate": 3}, {"exchange": "delta", "sync_every": 4}])
def test_a_job_without_validation_ends_with_its_training_loss(settings: dict[str, Any], tmp_path: Path) -> None:
    """The mean over the samples of the last epoch, in batches of 8 and one of 3; without a learning rate it is the loss
    on all of them."""
    model, random = torch.nn.Linear(4, 1), torch.Generator().manual_seed(1)
    x, y = torch.randn(35, 4, generator=random), torch.randn(35, 1, generator=random)
    data, optimizer = torch.utils.data.TensorDataset(x, y), torch.optim.SGD(model.parameters(), lr=0.0)
    common: dict[str, Any] = {"procs": 0, "batch_size": 8, "epochs": 3, "run_dir": tmp_path / "run"}
    result = hogwild.train(model, data, torch.nn.MSELoss(), optimizer, **common, **settings)
    whole = torch.nn.functional.mse_loss(model(x), y).item()
    # Three batches of 8, 8 and 3 are one update, whose loss counts for all their samples alike.
    assert result.train_loss == pytest.approx(whole, rel=0.1 if "accumulate" in settings else 1e-5)
    assert (result.best, result.metrics) == (None, {})
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["train_loss"] == result.train_loss


def test_all_items_are_ranked_only_for_data_that_says_who_has_what() -> None:
    pairs = torch.randint(0, 9, (64, 2), dtype=torch.int32)
    data = TensorDataset(*pairs.T, torch.rand(64))
    model = MatrixFactorization(9, 9, l2=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BuildError, match="recall@5: all items are ranked for each user, which needs data of") as error:
        hogwild.train(
            model, data, nn.MSELoss(), optimizer, val=data, evaluate={"metrics": ["rmse", "recall@5"]}, procs=0
        )
    assert error.value.code == "model/metric"
