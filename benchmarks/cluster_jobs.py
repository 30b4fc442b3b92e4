"""Jobs of two nodes for `cluster.py` and `cluster_deaths.py`, and how much is measured."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import commands
from benchmarks.baselines.many_digits import ManyDigits
from benchmarks.bench import FULL as BENCH_FULL
from benchmarks.bench import NO_EVALUATION, Bench
from benchmarks.bench import QUICK as BENCH_QUICK
from benchmarks.commands import MNIST, ROOT
from hogwild import host as this_host
from tests.cluster.hosts import LONG_MTU, Hosts, HostsRefused, TorchRun, why_not
from tests.cluster.running import Nodes

# ---- how much of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effort:
    """`times`: MNIST so many times over is one epoch, which lasts `times` x 3 s on two cores. `ddp_updates` over
    loopback, and over the slow network. `rates` and `tuning_seeds`: the grid. `share`: of the 25 M ratings.
    `parameters`: of the two hidden layers of the large model."""

    bench: Bench
    runs: int = 5
    epochs: int = 6
    times: int = 6
    ddp_updates: tuple[int, int] = (600, 40)
    accuracy_epochs: int = 2
    rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2)
    tuning_seeds: tuple[int, ...] = (11, 12)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    share: float = 1.0
    hidden: tuple[int, int] = (4096, 3072)  # 15.8 M parameters, 63 MB
    rounds: int = 10
    cut: tuple[str, ...] = ()


def full() -> Effort:
    return Effort(Bench(BENCH_FULL))


def quick() -> Effort:
    return Effort(
        Bench(BENCH_QUICK), runs=1, epochs=1, times=2, ddp_updates=(5, 3), accuracy_epochs=1, rates=(0.05,),
        tuning_seeds=(11,), seeds=(1,), share=0.02, hidden=(512, 256), rounds=2, cut=("train.max_updates=400",),
    )  # fmt: skip


# ---- jobs ------------------------------------------------------------------------------------------------------------

ONE_EACH = ("train.procs=1", "train.threads=1")
NEVER_S = 1_000_000
SEEN_EVERY_S = 0.05  # between two records of a watched job, and so the resolution of its times
MOST_S = 900.0


def cluster_job(*arguments: str, run_dir: Path | None = None) -> dict[str, Any]:
    """Return the summary of a job of two nodes, as `train --nodes 2` answers it."""
    return commands.job("train", "--nodes", "2", *arguments, *ONE_EACH, run_dir=run_dir)[1]


def many_digits(times: int) -> str:
    name = f"{ManyDigits.__module__}.{ManyDigits.__qualname__}"
    return f"data.train={{class_path: {name}, init_args: {{times: {times}}}}}"


class Pinned(TorchRun):
    """Nodes with a core each, as `train --nodes` gives them."""

    def start(self, host: int, **options: Any) -> Any:
        before = this_host.affinity()
        cores = sorted(before)
        this_host.set_affinity([cores[host % len(cores)]])  # what is started meanwhile inherits it
        try:
            return super().start(host, **options)
        finally:
            this_host.set_affinity(before)


class Seen(NamedTuple):
    """A node as its status.json had it."""

    time: float
    made: int  # batches that its workers have committed
    nodes: int
    round: int


@dataclass
class Watched(Pinned, Nodes):
    """A job that is watched: `seen` holds what every node said, in the order of time."""

    seen: dict[int, list[Seen]] = field(default_factory=lambda: defaultdict(list))

    def look(self, *nodes: int) -> None:
        """Add what these nodes say now, if it is new."""
        for node in nodes:
            status, before = self.status(node), self.seen[node]
            if not status.get("cluster") or (before and before[-1].time >= status["time"]):
                continue
            made = sum(worker["updates"] for worker in status["workers"])
            if status["workers"]:  # those that have ended are not in it
                cluster = status["cluster"]
                before.append(Seen(status["time"], made, cluster["nodes"], cluster["round"]))


def torchrun_job(folder: Path, *fields: str, hosts: Hosts | None = None, count: int = 2) -> Watched:
    """A job of MNIST's file on `count` nodes under torchrun, nothing evaluated."""
    argv = ["-m", "hogwild", "train", MNIST, "--no-progress", *NO_EVALUATION, *ONE_EACH, *fields]
    return Watched(count, [*argv, "cluster.engine=torchrun"], folder, hosts, {"PYTHONPATH": str(ROOT)})


@contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def speed_of(summary: dict[str, Any]) -> float:
    """Samples a second of all nodes."""
    return float(summary["cluster"]["samples_per_s"])


def two_hosts(*, mtu: int = LONG_MTU, delay_s: float = 0.0, rate_bytes_s: float | None = None) -> Hosts:
    if reason := why_not():
        raise HostsRefused(reason)
    return Hosts(2, delay_s, rate_bytes_s, mtu=mtu)
