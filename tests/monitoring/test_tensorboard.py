"""TensorBoard's files, read back by TensorBoard itself: curves over samples, without what a resume or a rollback
undid."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hogwild.errors import UsageError
from hogwild.monitoring import tensorboard
from hogwild.monitoring.tensorboard import BEGIN_AT, Curves, check_wanted
from tests.helpers.jobs import in_turn


def trained(samples: int, loss: float = 1.0) -> dict[str, Any]:
    workers = {"updates": [1]}
    return {"kind": "train", "time": 1e9, "samples": samples, "loss": loss, "lr": None, "workers": workers}


def evaluated(samples: int, **metrics: float) -> dict[str, Any]:
    position = {"time": 1e9, "epoch": 1, "updates": 7, "samples": samples, "seconds": 0.1, "best": True}
    return {"kind": "evaluation", **position, **metrics}


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0}).Reload()


def points(found: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_a_short_job_costs_no_import_and_leaves_no_file(tmp_path: Path) -> None:
    curves = Curves(tmp_path / "tb", {})
    for k in range(BEGIN_AT - 1):
        curves.write(trained(k))
    curves.close()
    assert not (tmp_path / "tb").exists()


def test_curves_metrics_histograms_and_settings_come_back(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, float("nan"), 3.0])
    settings = {"optimizer.lr": 0.1, "model": "m", "train.pin": False, "none": None}
    curves = Curves(tmp_path / "tb", settings, at_once=True, tensors=lambda: [("w", weight)], histograms_every=2)
    for k in range(3):
        curves.write(trained(100 * k + 50, 3.0 - k))
        curves.write(evaluated(100 * (k + 1), loss=1.0 / (k + 1), auc=0.5))
        curves.write({"kind": "staleness", "time": 1e9, "updates": 7, "counts": [5, 0, 2]})
    curves.close()
    assert curves.failure is None
    found = read(tmp_path / "tb")
    assert points(found, "train/loss") == [(50, 3.0), (150, 2.0), (250, 1.0)]
    assert points(found, "val/auc") == [(100, 0.5), (200, 0.5), (300, 0.5)]
    assert not [tag for tag in found.Tags()["scalars"] if "best" in tag or "seconds" in tag or "lr" in tag]
    histograms = found.Histograms("parameters/w")
    assert [(event.step, event.histogram_value.num) for event in histograms] == [(100, 2.0), (300, 2.0)]
    stale = found.Histograms("train/staleness")[-1].histogram_value
    assert (stale.bucket_limit, stale.bucket) == ([0.5, 1.5, 2.5], [5.0, 0.0, 2.0])
    data = found.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert data.plugin_name == "hparams" and b"optimizer.lr" in data.content and b"none" not in data.content


def test_what_a_resume_or_a_rollback_undid_is_struck_out(tmp_path: Path) -> None:
    first = Curves(tmp_path / "tb", {}, at_once=True)
    for samples in (100, 200, 300):
        first.write(trained(samples))
    first.go_on_from(200)  # a rollback
    first.write(trained(400, 2.0))
    first.close()
    second = Curves(tmp_path / "tb", {}, at_once=True)  # within the same second: the file's name must still be later
    second.go_on_from(300)
    second.write(trained(350, 3.0))
    second.close()
    assert len(list((tmp_path / "tb").iterdir())) == 2
    assert points(read(tmp_path / "tb"), "train/loss") == [(100, 1.0), (200, 1.0), (350, 3.0)]


def test_a_disk_that_takes_nothing_ends_the_curves_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "tb").write_text("in the way")
    curves = Curves(tmp_path / "tb", {}, at_once=True)
    curves.write(trained(1))
    curves.close()
    assert curves.failure is not None and "FileExistsError" in curves.failure
    curves.write(trained(2))
    assert "tensorboard" not in {thread.name for thread in threading.enumerate()}


def test_without_the_package_auto_does_without_and_true_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    check_wanted(True)
    monkeypatch.setattr(tensorboard, "is_installed", lambda: False)
    check_wanted("auto")
    check_wanted(False)
    with pytest.raises(UsageError, match=r"pip install 'hogwild\[tensorboard\]'") as caught:
        check_wanted(True)
    assert caught.value.code == "usage/missing-extra"


@pytest.mark.whole
@pytest.mark.processes
def test_a_job_writes_its_curves_and_a_resume_goes_on_with_them(jobs_folder: Path) -> None:
    common = ("train", "--procs", "0", "log.every_s=0.01", "log.tensorboard=true", "log.histograms_every=1")
    jobs = {
        "stopped": (*common, "train.epochs=8", "train.max_updates=300", "evaluate.every_epochs=2"),
        "resumed": ("train", "--resume", str(jobs_folder / "stopped" / "run"), "train.max_updates=600"),
    }
    ended = in_turn(jobs_folder, jobs)
    assert {job.status for job in ended.values()} == {0}, [job.stderr for job in ended.values()]
    assert all(job.process_leaks["threads"] == 0 for job in ended.values())
    folder = jobs_folder / "stopped" / "run" / "tensorboard"
    assert len(os.listdir(folder)) == 2
    found = read(folder)
    steps = [step for step, _ in points(found, "train/loss")]
    assert steps == sorted(set(steps)) and steps[-1] == ended["resumed"].summary["samples"]
    evaluations = [step for step, _ in points(found, "val/accuracy")]
    assert evaluations and [event.step for event in found.Histograms(found.Tags()["histograms"][0])] == evaluations
