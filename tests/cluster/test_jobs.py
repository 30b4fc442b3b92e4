"""Whole jobs of several nodes: real torchrun, supervisors, workers and communicators on loopback."""

import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from hogwild.monitoring.run_status import read_status
from tests.cluster.running import (
    SAMPLES,
    Nodes,
    all_have_trained,
    assert_each_once,
    counted,
    counting,
    effects_of,
    nodes,
)
from tests.helpers.jobs import start, write_ratings_job
from tests.helpers.processes import IS_THOROUGH, PATIENCE_S, marked, wait_for

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with counting(tmp_path_factory.mktemp("undisturbed"), pace_s=0.005) as job:
        assert job.wait() == [0, 0], job.text()
        yield job


@pytest.mark.whole
def test_two_nodes_train_every_batch_once(undisturbed: Nodes) -> None:
    assert_each_once(undisturbed)
    summary, other = undisturbed.summary(0), undisturbed.summary(1)
    assert summary["state"] == other["state"] == "succeeded"
    assert summary["leases"] == other["leases"]
    assert summary["updates"] == other["updates"] == SAMPLES / 4


@pytest.mark.whole
def test_both_nodes_train_and_both_know_what_the_rounds_were(undisturbed: Nodes) -> None:
    cluster = undisturbed.summary(0)["cluster"]
    assert cluster["nodes"] == 2 and cluster["lost"] == 0 and cluster["rounds"] == cluster["round"] > 0
    assert all(row["updates"] > 0 for row in cluster["of_nodes"])
    assert sum(row["updates"] for row in cluster["of_nodes"]) == SAMPLES / 4


@pytest.mark.whole
def test_only_the_communicator_of_a_node_talks_to_others(undisturbed: Nodes) -> None:
    for node in (0, 1):
        assert len(undisturbed.events(node, "communicator-ready")) == 1
        assert not undisturbed.events(node, "communicator-exit")


def test_a_job_differs_on_one_node_and_both_name_the_field(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        job.agents[1].terminate()
        job.agents[1].wait(PATIENCE_S)
        job.argv = [*job.argv, "data.batch_size=8"]
        job.start(1)
        assert 0 not in job.wait(), job.text()
        for text in (job.text(0), job.text(1)):
            assert "data.batch_size" in text and "4" in text and "8" in text
            assert "cluster/other-job" in text


def test_tables_of_unequal_size_are_refused_on_both_nodes_by_name(tmp_path: Path) -> None:
    """One node's file has a user more, so its model has a row more."""
    write_ratings_job(tmp_path, procs=1, epochs=1)
    for node in (0, 1):
        (tmp_path / f"data-{node}").mkdir()
        rows = (tmp_path / "ratings.csv").read_text() + "20,0,3\n" * node
        (tmp_path / f"data-{node}" / "ratings.csv").write_text(rows)
    with nodes(tmp_path, str(tmp_path / "job.yaml"), own_data=True) as job:
        assert 0 not in job.wait(), job.text()
        for text in (job.text(0), job.text(1)):
            assert "cluster/other-job" in text
            for words in (r"parameters user\.weight is .* \[21, 4\], .* on node 0 it is .* \[20, 4\]", "data.names is"):
                assert re.search(f"node 1: {words}", text), text


def test_survivors_finish_the_work_of_a_node_that_is_killed(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        job.wait_for_round(3)
        job.kill(1)
        job.wait_for_event(0, "node-lost")
        job.hurry()
        assert job.wait_for_end(0)["state"] == "succeeded"
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 1
        (lost,) = job.events(0, "node-lost")
        assert lost["nodes"] == [1]


def share_of_a_core(process: psutil.Process, until: Callable[[], None]) -> float:
    """Return the share of the time until then in which it ran; 1: it was awake all the time."""
    before, began_s = process.cpu_times(), time.monotonic()
    until()
    after, took_s = process.cpu_times(), time.monotonic() - began_s
    return (after.user + after.system - before.user - before.system) / took_s


@pytest.mark.whole
def test_a_communicator_that_is_killed_is_replaced_and_nobody_is_lost(tmp_path: Path) -> None:
    with counting(tmp_path, pace_s=0.2) as job:
        job.wait_for_round(3)
        assert share_of_a_core(job.supervisor(0), partial(job.wait_for_more_rounds, 10)) < 0.5  # it sleeps in between
        for number in range(3):
            node = number % 2
            job.communicator(node).kill()
            job.wait_for_event(0, "cluster-formed", count=number + 1)
        job.hurry()
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 0
        assert len(job.events(0, "communicator-exit")) == 2
        assert len(job.events(1, "communicator-exit")) == 1


def test_a_signal_to_all_leaves_the_last_round_and_a_resume_on_one_machine_and_back_completes_it(
    tmp_path: Path,
) -> None:
    with counting(tmp_path) as job:
        job.wait_for_round(4)
        for node in (0, 1):
            job.supervisor(node).send_signal(signal.SIGTERM)
        assert job.wait() == [0, 0], job.text()
        assert job.summary()["state"] == "stopped"
        done = job.summary()["leases"]["done"]
        effects = job.effects()
        assert 0 < done < SAMPLES / 4
        assert int(effects.sum()) == 4 * done and set(effects.tolist()) == {0.0, 1.0}
    job.hurry()
    alone = start(tmp_path, "--resume", str(job.run), "cluster.engine=none", run_dir=job.run).wait()
    assert alone.status == 0, alone.said
    assert_each_once(job)
    newest = (job.run / "checkpoints" / "latest").resolve()
    newest.rename(job.run / "node-1" / "checkpoints" / newest.name)
    again = start(tmp_path, "--resume", str(job.run), "cluster.engine=none", run_dir=job.run).wait()
    assert again.status == 0, again.said
    assert_each_once(job)  # it had nothing left to do, but a checkpoint of its own to write


def test_the_end_of_the_first_node_ends_all_with_the_last_round_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        job.wait_for_round(4)
        job.kill(0)
        summary = job.wait_for_end(1)
        # Its own torchrun may miss the store first, and ends it with a signal.
        ends = {"torchrun or its store is lost": 75, "SIGTERM": 0}
        assert (summary["state"], summary["exit_status"]) == ("stopped", ends[summary["reason"]])
        before = summary["leases"]["done"]
        assert 0 < before < SAMPLES / 4
    job.hurry()
    with counting(tmp_path) as job:
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
        assert job.events(0, "resume")[-1]["updates"] == before  # from what the second node had written


def test_nodes_of_one_command_say_which_has_the_newest_checkpoint_and_how_to_go_on(tmp_path: Path) -> None:
    job = start(tmp_path, "train", *counted(tmp_path), "--nodes", "2")
    wait_for("updates of both nodes", lambda: all_have_trained(job.status()))
    sockets = [one for pid in marked(job.mark) for one in psutil.Process(pid).net_connections("inet")]
    assert {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    psutil.Process(job.status()["pid"]).kill()
    (tmp_path / "diary" / "hurry").touch()
    ended = job.wait()
    # Whether the second node can go on alone depends on who notices first: it, or the torchrun of the first, which had
    # the store.
    state = {0: "succeeded", 75: "stopped"}[ended.status]
    other = job.run_dir / "node-1"
    assert f"node-1: {state}; its summary and its last checkpoint are in {other}" in ended.said
    command = read_status(job.run_dir).way_on.removeprefix("resume with: hogwild ")
    again = start(tmp_path, *command.split(), run_dir=job.run_dir).wait()
    assert again.status == 0 and ended.left_behind == again.left_behind == [], again.said
    assert effects_of(job.run_dir).eq(1).all()


def test_a_node_joins_a_running_job_and_all_go_on_from_its_last_round(tmp_path: Path) -> None:
    """Twice: the last one has a number, and a store, that no other process has had."""
    with counting(tmp_path, pace_s=0.2, count=1, most=3) as job:
        job.wait_for_round(3)
        for node in (1, 2):
            job.start(node)
            job.wait_for_round(1, node=node)  # and until all have trained
        job.hurry()
        assert job.wait() == [0, 0, 0], job.text()
        assert_each_once(job)
        assert [event["nodes"] for event in job.events(0, "cluster-joined")] == [[0], [0, 1], [0, 1, 2]]
        done = [event["updates"] for event in job.events(0, "resume") if event["checkpoint"]]
        assert len(done) == 2 and 0 < done[0] < done[1] < SAMPLES / 4


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
