"""Kernels at the start of a job: compiled once, by a process of its own, and loaded before the workers are forked."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

import hogwild
from hogwild.config.load import load_job
from hogwild.data import Ratings
from hogwild.job.foreseen_kernels import foreseen
from hogwild.kernels import kernel_cache
from hogwild.kernels.kernel_cache import KernelCache
from hogwild.models import MatrixFactorization
from hogwild.optimizers import RowWiseAdagrad
from tests.helpers.jobs import Ended, Job, write_ratings_job

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ratings, and with an empty cache of kernels."""
    write_ratings_job(tmp_path, procs=2, epochs=3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def said_of_kernels(run_dir: Path) -> list[str]:
    """Return the way in which each worker got its kernels, as its log says."""
    logs = "".join(file.read_text() for file in sorted(run_dir.glob("logs/worker-*.log")))
    return re.findall(r"^kernels of .*: (.*) in [0-9.]+ s$", logs, re.MULTILINE)


@pytest.mark.slow
def test_workers_compile_nothing_and_load_nothing_that_the_fork_server_has(
    folder: Path, start_job: Callable[..., Job]
) -> None:
    def ended(name: str) -> Ended:
        there = {"XDG_CACHE_HOME": str(folder / "cache")}
        job = start_job(folder / name, str(folder / "job.yaml"), "--data-dir", str(folder), extra=there).wait()
        assert job.status == 0 and job.summary["update"] == "fused" and not job.events("fresh-interpreter"), job.stderr
        return job

    compiled = said_of_kernels(ended("first").run_dir)
    assert compiled and "compiled" not in compiled, "the job's own process for that has"
    (kernels,) = foreseen(load_job(folder / "job.yaml"))
    kept = [path.name for path in (folder / "cache" / "hogwild").iterdir()]
    assert kept == [KernelCache.of(kernels).folder.name], "one kernel, compiled once; and no claim is left"
    assert {*said_of_kernels(ended("second").run_dir)} == {"there already"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "end", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)", "import time; time.sleep(999)"]
)
def test_a_compiler_that_fails_is_killed_or_hangs_costs_nothing_but_time(
    end: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "CODE", end)
    model = MatrixFactorization(20, 9, 4)
    run_dir = folder / "run"
    given = {"procs": 2, "epochs": 3, "batch_size": 8, "run_dir": run_dir}
    data, rule = Ratings(folder / "ratings.csv"), RowWiseAdagrad(model.parameters())
    assert hogwild.train(model, data, nn.MSELoss(), rule, **given).update == "fused"  # type: ignore[arg-type]
    assert said_of_kernels(run_dir).count("compiled") == 1
