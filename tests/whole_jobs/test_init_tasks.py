"""Every task of `init` as a new user runs it: `hogwild init TASK`, then `hogwild train TASK.yaml`, without data of
their own. It learns more than the best constant answer knows."""

import contextlib
import math
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from hogwild import user_code
from hogwild.cli.catalog import ARCHIVE, job_text, sample_files, tasks
from hogwild.cli.main import run as command
from hogwild.config.load import load_job
from hogwild.config.locate import shipped
from hogwild.data import locate
from hogwild.job.build import build
from hogwild.losses import BprLoss, LogisticLoss, NegativeSampling, SoftmaxLoss
from hogwild.planning.device_placement import planned
from tests.helpers.jobs import Ended, in_turn

LEARNT = 1 / 3  # of the way from the best constant answer to a perfect one
ENDING = [task for task in tasks() if task != "online"]  # that one follows its file: test_online_page.py
LARGEST, MOST = 100_000, 200_000  # bytes of a file, and of all in the wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Mapping[str, Ended]:
    """Every task in a folder of its own. `--data-dir` names an empty one: real data must not replace a sample."""
    (folder / "empty").mkdir()
    for task in ENDING:
        (folder / "files" / task).mkdir(parents=True)
        with contextlib.chdir(folder / "files" / task):
            assert command(["init", task]) == 0
    jobs = {
        task: ["train", str(folder / "files" / task / f"{task}.yaml"), "--data-dir", str(folder / "empty")]
        for task in ENDING
    }
    return in_turn(folder / "jobs", jobs)


@contextlib.contextmanager
def a_new_process() -> Iterator[None]:
    """Forget, afterwards, what building a job leaves in this process."""
    path, modules = [*sys.path], {*sys.modules}
    try:
        yield
    finally:
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            if not name.startswith(("hogwild", "torch", "numba", "numpy")):
                del sys.modules[name]
        user_code._job_folder = None
        locate.set_data_dir(None)


def knowing_nothing(job_file: Path, empty: Path) -> tuple[str, float, float]:
    """(metric, its value for the best constant answer, its best value), from the targets of the validation data."""
    with a_new_process():
        user_code.user_path(job_file)
        job = load_job(job_file)
        parts = build(planned(job), empty)
    assert parts.val is not None
    target = torch.as_tensor(parts.val.target)
    if isinstance(parts.loss, BprLoss):
        return "loss", math.log(2), 0.0
    if isinstance(parts.loss, SoftmaxLoss):  # any place among the entities
        entities = parts.model.entities.num_embeddings
        return "mrr", sum(1 / rank for rank in range(1, entities + 1)) / entities, 1.0
    if isinstance(parts.loss, NegativeSampling):
        return "spearman", 0.0, 1.0
    if "auc" in job.evaluate.metrics:
        return "auc", 0.5, 1.0
    if isinstance(parts.loss, LogisticLoss):
        target = (target > 0).long()
    if target.dtype == torch.int64:
        return "accuracy", float(target.flatten().bincount().max() / target.numel()), 1.0
    return "rmse", float(target.std(correction=0)), 0.0


@pytest.mark.processes
@pytest.mark.parametrize("task", ENDING)
def test_a_task_trains_as_it_was_written_and_learns(task: str, folder: Path, trained: Mapping[str, Ended]) -> None:
    ended = trained[task]
    assert ended.status == 0, ended.stderr
    assert ended.summary["state"] == "succeeded"
    metric, constant, best = knowing_nothing(folder / "files" / task / f"{task}.yaml", folder / "empty")
    reached = ended.summary["metrics"][metric]
    assert (reached - constant) / (best - constant) > LEARNT, f"{metric} {reached:.3f}; a constant: {constant:.3f}"


@pytest.mark.parametrize("task", tasks())
def test_every_edit_of_a_task_changes_a_line_and_keeps_the_old_one(task: str) -> None:
    written, given = job_text(task), shipped(f"configs/{tasks()[task].job}").read_text()
    for old, new in tasks()[task].edits.items():
        assert old in given and new in written, old
    for line in given.splitlines():
        assert line in written or f"# {line.lstrip()}" in written or line.startswith(("# yaml-language", "name: "))


def test_each_sample_belongs_to_a_task_is_described_and_all_are_small() -> None:
    with tarfile.open(ARCHIVE) as archive:
        names = archive.getnames()
    held = {Path(name).parts[0] for name in names if "/" in name}
    assert held == {task.sample for task in tasks().values() if task.sample}
    assert {f"{name}.txt" for name in held} == {name for name in names if "/" not in name}
    assert all(0 < len(content) <= LARGEST for name in held for content in sample_files(name).values())
    assert ARCHIVE.stat().st_size <= MOST
