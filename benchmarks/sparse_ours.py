"""Our jobs as a user starts them, and what is taken from their answers, in one place.

A job's seconds of training are `train_s - paused_s`: from the first update to the last, evaluations left out. What is
before them (imports, parsing or mapping the data, placing it in a grid, starting workers, compiling) is in
`startup_s`, and has rows of its own."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import NO_EVALUATION, say
from benchmarks.commands import OFTEN, ROOT, CommandFailed, job, settled
from benchmarks.sparse_peers import Curve


@dataclass(frozen=True, slots=True)
class Trained:
    """One job. `curve`: (seconds of training so far, the metric), an evaluation each."""

    summary: Mapping[str, Any]
    curve: Curve
    settled: float | None = None  # samples a second once all workers were there, if the job lasted

    @property
    def per_s(self) -> float:
        return float(self.summary["samples_per_s"])

    @property
    def seconds(self) -> float:
        return training_s(self.summary)

    @property
    def start(self) -> dict[str, float]:
        """Seconds before the first update, by what they went to; `all` of them, the command's start included."""
        parts = {str(name).removesuffix("_s"): float(spent) for name, spent in self.summary["startup"].items()}
        parts["compiling"] = float(self.summary.get("compiling_s", 0.0))
        return {**parts, "all": float(self.summary["startup_s"])}


def training_s(summary: Mapping[str, Any]) -> float:
    return float(summary["train_s"]) - float(summary["paused_s"])


@dataclass(frozen=True, slots=True)
class Ours:
    """Starts jobs whose runs lie below `folder`, with what is kept of their data: from the second one on it is not
    parsed again. `cut`: further settings, which end a trial early."""

    folder: Path
    cut: tuple[str, ...] = ()

    def train(self, config: str, procs: int, *settings: str, metric: str | None = None) -> Trained:
        """`configs/CONFIG.yaml`. Raises CommandFailed, also where autograd trained instead of a kernel."""
        run_dir = self.folder / f"{config.replace('/', '-')}-{uuid.uuid4().hex}"
        file = str(ROOT / "configs" / f"{config}.yaml")
        _, summary = job("train", file, "--procs", str(procs), "train.threads=1", *settings, *self.cut, run_dir=run_dir)
        if summary["update"] != "fused":
            raise CommandFailed(f"{config}: {summary.get('update_why', summary['update'])}")
        trained = Trained(summary, curve_of(run_dir, summary, metric) if metric else (), settled(run_dir))
        words = "" if not trained.curve else f", {metric} {trained.curve[-1][1]:.4f}"
        say(f"ours, {config}, {procs} procs: {trained.per_s:,.0f} samples/s, {trained.seconds:.3f} s{words}")
        return trained

    def speed(self, config: str, procs: int, *settings: str) -> float:
        """Samples a second once all workers are there, nothing evaluated."""
        trained = self.train(config, procs, *settings, *NO_EVALUATION, *OFTEN)  # last: settings may name a data.val
        return trained.settled or trained.per_s


def curve_of(run_dir: Path, summary: Mapping[str, Any], metric: str) -> Curve:
    """The evaluations of a run. The records have no clock that stands still in a pause; samples are as good a clock,
    at the speed of the whole run."""
    with open(run_dir / "metrics.jsonl") as lines:
        records = [record for record in map(json.loads, lines) if record["kind"] == "evaluation"]
    return [(record["samples"] / summary["samples_per_s"], record[metric]) for record in records]
