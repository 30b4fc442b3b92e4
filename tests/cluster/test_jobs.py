"""Whole jobs of several nodes: real torchrun, supervisors, workers and communicators on loopback.

Row i of the counting model is changed by sample i alone, and each time by exactly 1. So at the end every row must be 1,
whatever happened to whom: what is not 1 was lost, or counted twice."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import safetensors.torch
from torch import Tensor

from tests.cluster.hosts import TorchRun
from tests.helpers.jobs import HOME, JOBS, read_events, start
from tests.helpers.processes import PATIENCE_S, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
SAMPLES = 1600


class Nodes(TorchRun):
    """A job on several nodes; `run` is its run directory."""

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def dir_of(self, node: int) -> Path:
        return self.run if node == 0 else self.run / f"node-{node}"

    def summary(self, node: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.dir_of(node) / "summary.json").read_text())
        return found

    def events(self, node: int, kind: str) -> list[dict[str, Any]]:
        return read_events(self.dir_of(node), kind)

    def status(self, node: int) -> dict[str, Any]:
        file = self.dir_of(node) / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def wait_for_round(self, number: int, node: int = 0) -> None:
        """Wait until the node says that so many rounds are committed, and that both nodes have trained."""
        wait_for(f"round {number} of node {node}", lambda: self._is_at(number, node) or self._has_ended(), PATIENCE_S)
        assert not self._has_ended(), self.text()

    def _is_at(self, number: int, node: int) -> bool:
        cluster = self.status(node).get("cluster") or {}
        return cluster.get("round", 0) >= number and all(row["updates"] for row in cluster["of_nodes"])

    def _has_ended(self) -> bool:
        return any(agent.poll() is not None for agent in self.agents.values())

    def wait_for_end(self, node: int) -> dict[str, Any]:
        """Wait until this node's supervisor has ended; return its summary. (Its torchrun may wait five minutes longer,
        for the agents of lost nodes.)"""
        pid = self.status(node)["pid"]
        wait_for(f"the end of node {node}", lambda: not psutil.pid_exists(pid), PATIENCE_S)
        assert (self.dir_of(node) / "summary.json").exists(), self.text()
        return self.summary(node)

    def processes_of(self, node: int) -> list[psutil.Process]:
        """The node's agent, supervisor, and all below."""
        supervisor = psutil.Process(self.status(node)["pid"])
        agent = next(parent for parent in supervisor.parents() if parent.pid in self._agent_pids())
        return [agent, *agent.children(recursive=True)]

    def supervisor(self, node: int) -> psutil.Process:
        return psutil.Process(self.status(node)["pid"])

    def communicator(self, node: int) -> psutil.Process:
        ready = [event for event in self.events(node, "communicator-ready")]
        return psutil.Process(ready[-1]["pid"])

    def _agent_pids(self) -> set[int]:
        return {agent.pid for agent in self.agents.values()}

    def kill(self, node: int) -> None:
        """Kill a node, all at once."""
        for process in self.processes_of(node):
            process.send_signal(signal.SIGKILL)

    def effects(self, node: int = 0) -> Tensor:
        latest = self.dir_of(node) / "checkpoints" / "latest" / "model.safetensors"
        return safetensors.torch.load_file(latest)["effects.weight"].squeeze(1)


def nodes(folder: Path, job: str, *fields: str, count: int = 2, options: tuple[str, ...] = ()) -> Nodes:
    """A job of `count` nodes, as a user starts it."""
    argv = ["-m", "hogwild", "train", job, "--run-dir", str(folder / "run"), "--no-progress", *fields]
    extra = {"PYTHONPATH": f"{HOME}{os.pathsep}{JOBS}"}
    return Nodes(count, [*argv, "cluster.engine=torchrun"], folder, extra=extra, options=options)


def counting(folder: Path, *fields: str, pace_s: float = 0.02, count: int = 2, options: tuple[str, ...] = ()) -> Nodes:
    diary = folder / "diary"
    diary.mkdir(exist_ok=True)
    return nodes(
        folder,
        COUNTING,
        "cluster.outer=average",
        "cluster.sync_every_s=0.2",
        "train.procs=1",
        f"model.init_args.pace_s={pace_s}",
        f"model.init_args.diary={diary}",
        *fields,
        count=count,
        options=options,
    )


def assert_each_once(job: Nodes, node: int = 0) -> None:
    effects, leases = job.effects(node), job.summary(node)["leases"]
    assert leases["total"] == SAMPLES / 4 == leases["done"] + leases["skipped"] + leases["quarantined"]
    wrong = (effects != 1).nonzero().squeeze(1).tolist()
    assert len(wrong) <= 4 * leases["indeterminate"], f"rows {wrong[:20]} are {effects[wrong][:20].tolist()}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with counting(tmp_path_factory.mktemp("undisturbed"), pace_s=0.005) as job:
        assert job.wait() == [0, 0], job.text()
        yield job


def test_two_nodes_train_every_batch_once(undisturbed: Nodes) -> None:
    assert_each_once(undisturbed)
    summary, other = undisturbed.summary(0), undisturbed.summary(1)
    assert summary["state"] == other["state"] == "succeeded"
    assert summary["leases"] == other["leases"]
    assert summary["updates"] == other["updates"] == SAMPLES / 4


def test_both_nodes_train_and_both_know_what_the_rounds_were(undisturbed: Nodes) -> None:
    cluster = undisturbed.summary(0)["cluster"]
    assert cluster["nodes"] == 2 and cluster["lost"] == 0 and cluster["rounds"] == cluster["round"] > 0
    assert all(row["updates"] > 0 for row in cluster["of_nodes"])
    assert sum(row["updates"] for row in cluster["of_nodes"]) == SAMPLES / 4


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


def test_survivors_finish_the_work_of_a_node_that_is_killed(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        job.wait_for_round(3)
        job.kill(1)
        assert job.wait_for_end(0)["state"] == "succeeded"
        assert_each_once(job)
        assert job.summary()["cluster"]["lost"] == 1
        (lost,) = job.events(0, "node-lost")
        assert lost["nodes"] == [1]


def test_a_communicator_that_is_killed_is_replaced_and_nobody_is_lost(tmp_path: Path) -> None:
    with counting(tmp_path, pace_s=0.2) as job:
        job.wait_for_round(3)
        for number in range(3):
            node = number % 2
            job.communicator(node).kill()
            formed = f"the group of generation {number + 2}"
            wait_for(formed, lambda n=number: len(job.events(0, "cluster-formed")) > n, PATIENCE_S)
        (tmp_path / "diary" / "hurry").touch()
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
    alone = start(tmp_path, "--resume", str(job.run), "cluster.engine=none", run_dir=job.run).wait()
    assert alone.status == 0, alone.said
    assert_each_once(job)


def test_the_end_of_the_first_node_ends_all_with_the_last_round_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with counting(tmp_path) as job:
        job.wait_for_round(4)
        job.kill(0)
        summary = job.wait_for_end(1)
        assert (summary["state"], summary["exit_status"]) == ("stopped", 75)
        before = summary["leases"]["done"]
        assert 0 < before < SAMPLES / 4
    (tmp_path / "diary" / "hurry").touch()
    with counting(tmp_path) as job:
        assert job.wait() == [0, 0], job.text()
        assert_each_once(job)
