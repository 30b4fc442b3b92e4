"""Jobs of several nodes under the real torchrun, on loopback or on hosts of our own (`hosts.py`).

Row i of the counting model is changed by sample i alone, and each time by exactly 1. So at the end every row must be 1,
whatever happened to whom: what is not 1 was lost, or counted twice."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import safetensors.torch
from torch import Tensor

from tests.cluster.hosts import Hosts, Program, TorchRun
from tests.helpers.jobs import HOME, JOBS, read_events
from tests.helpers.processes import PATIENCE_S, wait_for

COUNTING = str(JOBS / "counting.yaml")
SAMPLES = 1600


@dataclass
class Nodes(TorchRun):
    """A job on several nodes; `run` is its run directory. `own_disks`: each node has a `--run-dir` of its own, as if
    it shared no disk with the others."""

    own_disks: bool = False
    own_data: bool = False  # node K reads its data in data-K
    cores: Sequence[int] = ()  # node K runs on cores[K] alone

    def start(self, host: int, **options: Any) -> Program:
        return super().start(host, **({"cores": [self.cores[host]]} if self.cores else {}), **options)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def dir_of(self, node: int) -> Path:
        run = self._run_of(node)
        return run if node == 0 else run / f"node-{node}"

    def _run_of(self, node: int) -> Path:
        return self.folder / f"disk-{node}" / "run" if self.own_disks else self.run

    def _command(self, host: int) -> list[str]:
        own = ["--data-dir", str(self.folder / f"data-{host}")] if self.own_data else []
        return [*super()._command(host), "--run-dir", str(self._run_of(host)), *own]

    def summary(self, node: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.dir_of(node) / "summary.json").read_text())
        return found

    def events(self, node: int, kind: str) -> list[dict[str, Any]]:
        return read_events(self.dir_of(node), kind)

    def status(self, node: int) -> dict[str, Any]:
        file = self.dir_of(node) / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def round(self, node: int = 0) -> int:
        """Return the last round that the node says is committed."""
        cluster = self.status(node).get("cluster") or {}
        return int(cluster.get("round", 0))

    def wait_for_round(self, number: int, node: int = 0, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the node says that so many rounds are committed, and that all nodes have trained."""

        def is_there() -> bool:
            return self._has_ended() or (self.round(node) >= number and all_have_trained(self.status(node)))

        wait_for(f"round {number} of node {node}", is_there, timeout_s)
        assert not self._has_ended(), self.text()

    def wait_for_more_rounds(self, count: int, node: int = 0, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the node has committed `count` rounds from now on; other nodes may be gone."""
        goal = self.round(node) + count
        wait_for(f"round {goal} of node {node}", lambda: self.round(node) >= goal, timeout_s)

    def wait_for_event(self, node: int, kind: str, timeout_s: float = PATIENCE_S, *, count: int = 1) -> None:
        """Wait until the node has written `count` events of a kind."""
        wait_for(f"{count} x {kind} of node {node}", lambda: len(self.events(node, kind)) >= count, timeout_s)

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
        agents = {agent.pid for agent in self.agents.values()}
        agent = next(parent for parent in supervisor.parents() if parent.pid in agents)
        return [agent, *agent.children(recursive=True)]

    def supervisor(self, node: int) -> psutil.Process:
        return psutil.Process(self.status(node)["pid"])

    def communicator(self, node: int) -> psutil.Process:
        return psutil.Process(self.events(node, "communicator-ready")[-1]["pid"])

    def kill(self, node: int) -> None:
        """Kill a node, all at once."""
        for process in self.processes_of(node):
            process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left: agents of survivors would wait for those of lost nodes."""
        for agent in self.agents.values():
            agent.close()
        super().close()

    def effects(self, node: int = 0) -> Tensor:
        return effects_of(self.dir_of(node))

    def workers(self, node: int) -> list[int]:
        """Return the process numbers of all workers that the node has started."""
        return [event["pid"] for event in self.events(node, "spawn")]

    def hurry(self) -> None:
        """Let the counting model wait no longer."""
        (self.folder / "diary" / "hurry").touch()


def all_have_trained(status: Mapping[str, Any]) -> bool:
    """Return whether all nodes have, by the status.json of one."""
    cluster = status.get("cluster") or {"of_nodes": []}
    return bool(cluster["of_nodes"]) and all(row["updates"] for row in cluster["of_nodes"])


def effects_of(run: Path) -> Tensor:
    """Return how often each sample has taken effect, by a run's latest checkpoint."""
    latest = run / "checkpoints" / "latest" / "model.safetensors"
    return safetensors.torch.load_file(latest)["effects.weight"].squeeze(1)


def nodes(
    folder: Path,
    job: str,
    *fields: str,
    count: int = 2,
    options: Sequence[str] = (),
    hosts: Hosts | None = None,
    most: int = 0,
    own_disks: bool = False,
    cores: Sequence[int] = (),
    own_data: bool = False,
) -> Nodes:
    """A job of `count` nodes, as a user starts it."""
    argv = ["-m", "hogwild", "train", job, "--no-progress", *fields, "cluster.engine=torchrun"]
    extra = {"PYTHONPATH": f"{HOME}{os.pathsep}{JOBS}"} | ({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if most else {})
    return Nodes(count, argv, folder, hosts, extra, options, most, own_disks=own_disks, own_data=own_data, cores=cores)


def counted(folder: Path, pace_s: float = 0.02) -> tuple[str, ...]:
    """The counting job with a round every 0.2 s, and a folder for its notes."""
    diary = folder / "diary"
    diary.mkdir(exist_ok=True)
    return (
        COUNTING,
        "cluster.sync_every_s=0.2",
        "train.procs=1",
        f"model.init_args.pace_s={pace_s}",
        f"model.init_args.diary={diary}",
    )


def counting(folder: Path, *fields: str, pace_s: float = 0.02, **options: Any) -> Nodes:
    """The counting job on several nodes; `options` as of `nodes`."""
    return nodes(folder, *counted(folder, pace_s), *fields, **options)


def assert_each_once(job: Nodes, node: int = 0, samples: int = SAMPLES) -> None:
    """Every row is 1, except what no ledger can know; and no batch is missing in the ledger. One epoch: of the changes
    of a row by two nodes in the same round the mean counts."""
    effects, leases = job.effects(node), job.summary(node)["leases"]
    assert leases["total"] == samples / 4 == leases["done"] + leases["skipped"] + leases["quarantined"]
    wrong = (effects != 1).nonzero().squeeze(1).tolist()
    assert len(wrong) <= 4 * leases["indeterminate"], f"rows {wrong[:20]} are {effects[wrong][:20].tolist()}"
