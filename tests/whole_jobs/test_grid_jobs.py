"""Whole jobs over a grid: each worker has row blocks for itself, and looks who is in a column before it enters."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from tests.helpers.jobs import HOME, Ended, Job, in_turn
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

USERS, ITEMS, RATINGS = 12_000, 9_000, 90_000
SMALL = ["model.init_args.factors=16", "data.batch_size=500", "train.epochs=4", "log.tensorboard=false"]


@pytest.fixture(scope="module")
def job(jobs_folder: Path) -> list[str]:
    """configs/ratings.yaml on a file of our own: everybody has rated something, everything was rated."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, USERS, RATINGS), rng.integers(0, ITEMS, RATINGS)
    user[:USERS], item[-ITEMS:] = np.arange(USERS), np.arange(ITEMS)
    _, firsts = np.unique(user * ITEMS + item, return_index=True)
    user, item = user[firsts], item[firsts]
    rating = 3.0 + rng.normal(size=USERS)[user] + rng.normal(size=ITEMS)[item]
    file = jobs_folder / "ratings.csv"
    table = np.stack([user, item, np.round(rating, 1)], axis=1)
    np.savetxt(file, table, fmt=("%d", "%d", "%.1f"), delimiter=",", header="user,item,rating", comments="")
    data = [
        f"data.{part}={{class_path: hogwild.data.Ratings, init_args: {{path: {file}, holdout: {{fraction: 0.1, part: "
        f"{name}}}}}}}"
        for part, name in (("train", "train"), ("val", "test"))
    ]
    return [str(HOME / "configs" / "ratings.yaml"), *data, *SMALL]


@pytest.fixture(scope="module")
def ended(jobs_folder: Path, job: list[str]) -> dict[str, Ended]:
    half = ["--resume", str(jobs_folder / "jobs" / "half" / "run"), "train.max_updates=null"]
    return in_turn(
        jobs_folder / "jobs",
        {
            "two": [*job, "train.procs=2"],
            "half": [*job, "train.procs=2", "train.max_updates=300"],
            "with three": [*half, "train.procs=3"],
            "direct": [*job, "train.procs=2", "train.exchange=direct"],
        },
    )


def test_two_workers_are_kept_apart_by_a_grid_and_every_batch_is_done_once(ended: dict[str, Ended]) -> None:
    two = ended["two"]
    assert two.status == 0, two.stderr
    assert "a grid of 2 x 19 blocks of user and item: no two workers share a row" in two.stderr
    assert two.leases["done"] == two.leases["total"] and two.leases["total"] % 4 == 0
    assert 0.88 < two.summary["samples"] / 4 / RATINGS < 0.91 and two.summary["samples"] % 4 == 0
    assert 0 <= two.summary["idle"] <= 1
    assert two.summary["metrics"]["rmse"] < 1.0, "1.41 without what is learnt"


def test_a_run_over_a_grid_goes_on_in_its_cells_with_another_number_of_workers(ended: dict[str, Ended]) -> None:
    half, more = ended["half"], ended["with three"]
    assert "300 updates" in half.stdout and more.status == 0, more.stderr
    assert "a grid of 2 x 19 blocks" in more.stderr
    assert more.leases == ended["two"].leases
    assert more.summary["samples"] == ended["two"].summary["samples"]
    assert more.summary["metrics"]["rmse"] < 1.0


def test_a_job_that_says_direct_has_a_grid_too(ended: dict[str, Ended]) -> None:
    direct = ended["direct"]
    assert direct.status == 0 and "a grid of 2 x 19 blocks" in direct.stderr
    assert direct.summary["samples"] == ended["two"].summary["samples"]


@pytest.mark.whole
def test_a_killed_worker_s_row_block_is_finished_by_others(tmp_path: Path, job: list[str], start_job) -> None:  # type: ignore[no-untyped-def]
    begun: Job = start_job(tmp_path, *job, "train.procs=2", "train.epochs=100000", "data.val=null")
    begun.wait_for_updates(500)
    for _ in range(2):
        pid = wait_for("a worker", lambda: next(iter(begun.workers().values()), 0))
        os.kill(pid, signal.SIGKILL)
        begun.wait_for_exit_of(pid)
    now = begun.wait_for_updates(1) + 1000
    begun.wait_for_updates(now)
    begun.send(signal.SIGTERM)
    stopped = begun.wait()
    assert stopped.status == 75 and stopped.ledger_adds_up() and not stopped.left_behind
    assert stopped.summary["restarts"] == 2
