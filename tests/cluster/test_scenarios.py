"""Jobs of several nodes on loopback: evaluations, ends of the job, NaN, restarts by torchrun."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.cluster.running import SAMPLES, Nodes, assert_each_once, counting
from tests.helpers.processes import IS_THOROUGH, wait_for

pytestmark = pytest.mark.processes
thorough = pytest.mark.skipif(not IS_THOROUGH, reason="make stress")

VALIDATED = "data.val={class_path: counting.Numbers, init_args: {samples: 8}}"


@thorough
def test_other_nodes_commit_rounds_during_a_long_evaluation_of_the_first(tmp_path: Path) -> None:
    slow = ("evaluate.every_updates=50", "model.init_args.evaluation_pace_s=200")
    with counting(tmp_path, VALIDATED, *slow, pace_s=0.1) as job:
        wait_for("an evaluation", lambda: job.status(0).get("doing") == "evaluating")
        job.wait_for_more_rounds(5, node=1)
        assert job.status(0)["doing"] == "evaluating"
        job.hurry()
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        assert job.events(0, "evaluation") and not job.events(1, "evaluation")


@thorough
def test_parameters_that_become_nan_on_one_node_stay_there_and_its_batches_are_skipped(tmp_path: Path) -> None:
    poisoned = ("model.class_path=poisoning.Poisoned", "model.init_args.poisoned_at=800")
    with counting(tmp_path, *poisoned) as job:
        assert job.wait() == [0, 0], job.text()
        skipped = job.summary()["leases"]["skipped"]
        refused = [len(job.events(node, "round-refused")) for node in (0, 1)]
        assert sorted(refused) == [0, 1] and 0 < skipped < SAMPLES / 8
        effects = job.effects()
        assert {*effects.tolist()} == {0.0, 1.0}
        assert int((effects == 0).sum()) == 4 * skipped
        assert job.summary(0)["leases"] == job.summary(1)["leases"]


@thorough
def test_a_second_group_in_the_same_run_directory_is_refused(tmp_path: Path) -> None:
    with counting(tmp_path, pace_s=2.0) as job:
        job.wait_for_round(2)
        (tmp_path / "second").mkdir()
        with Intruders(2, job.argv, tmp_path / "second", extra=job.extra) as second:
            assert 0 not in second.wait(), second.text()
            job.hurry()
            for node in (0, 1):
                assert "is in use by another job" in second.text(node) and "run/in-use" in second.text(node)
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)


class Intruders(Nodes):
    """Nodes with the run directory of a job in the folder above."""

    @property
    def run(self) -> Path:
        return self.folder.parent / "run"


@thorough
def test_a_target_ends_all_nodes_at_the_same_round(tmp_path: Path) -> None:
    with counting(tmp_path, VALIDATED, "evaluate.every_updates=50", "evaluate.target={loss: -0.4}") as job:
        assert job.wait() == [0, 0], job.text()
        same_end(job, "succeeded", "target")


@thorough
def test_the_time_is_over_for_all_nodes_at_the_same_round_and_that_is_no_failure(tmp_path: Path) -> None:
    with counting(tmp_path, "train.max_time_s=4", pace_s=0.2) as job:
        assert job.wait() == [0, 0], job.text()
        same_end(job, "stopped", "max_time_s")


def same_end(job: Nodes, state: str, reason: str) -> None:
    """Check that both nodes ended with the same round, and that its checkpoint is of its ledger."""
    first, second = job.summary(0), job.summary(1)
    assert first["leases"] == second["leases"] and first["cluster"]["round"] == second["cluster"]["round"]
    for summary in (first, second):
        assert summary["state"] == state and summary["reason"].startswith(reason), summary["reason"]
    done = first["leases"]["done"]
    effects = job.effects()
    assert 0 < done < SAMPLES / 4
    assert int(effects.sum()) == 4 * done and {*effects.tolist()} == {0.0, 1.0}


@thorough
def test_one_of_three_nodes_leaves_by_a_signal_and_the_others_finish(tmp_path: Path) -> None:
    with counting(tmp_path, count=3, pace_s=0.2) as job:
        job.wait_for_round(3)
        job.supervisor(1).send_signal(signal.SIGTERM)
        assert job.wait_for_end(1)["state"] == "stopped"
        job.wait_for_event(0, "node-lost")
        job.hurry()
        assert job.wait() == [0, 0, 0], job.text()
        for node in (0, 2):
            assert job.summary(node)["state"] == "succeeded"
        assert_each_once(job)


@thorough
def test_torchrun_restarts_all_nodes_after_a_supervisor_is_killed(tmp_path: Path) -> None:
    with counting(tmp_path, pace_s=0.2, options=("--max-restarts", "2")) as job:
        job.wait_for_round(5)
        killed = job.supervisor(1)
        killed.kill()
        wait_for("another supervisor of node 1", lambda: job.status(1).get("pid") not in (None, killed.pid))
        job.hurry()
        assert job.wait() == [0, 0], job.text()
        assert job.summary(0)["state"] == job.summary(1)["state"] == "succeeded"
        assert_each_once(job)


@thorough
def test_a_node_that_has_lost_its_disk_gets_the_newest_checkpoint_and_writes_it_with_nothing_left_to_do(
    tmp_path: Path,
) -> None:
    with counting(tmp_path, pace_s=0.0, own_disks=True) as job:
        assert job.wait() == [0, 0], job.text()
    shutil.rmtree(job.dir_of(0))
    with counting(tmp_path, pace_s=0.0, own_disks=True) as job:
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
