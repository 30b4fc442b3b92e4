"""Texts of the command line: a job in a few lines, a summary, plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.config.schema import Split
from hogwild.formatting import counted
from hogwild.monitoring.job_view import Best, trained_by
from hogwild.monitoring.run_status import cluster_of, resume_words


def plan_lines(job: Job) -> Iterator[str]:
    """Yield a job in a few lines, from its file alone."""
    train, data = job.train, job.data
    yield f"  model      {_call(job.model)}"
    yield f"  loss       {_call(job.loss)}"
    yield f"  data       {_call(data.train)}, batches of {data.batch_size}"
    if data.val is not None:
        held_back = f"{data.val.fraction:g} of it" if isinstance(data.val, Split) else _call(data.val)
        yield f"  evaluated  on {held_back}"
    yield f"  optimizer  {_call(job.optimizer)}, state {job.optimizer.state}, lr {job.lr_schedule.name}"
    for group in job.optimizer.groups:
        own = ", ".join(f"{name}={value!r}" for name, value in group.init_args.items())
        yield f"    group    {' '.join(group.params)}: {own or 'no own settings'}"
    given = (("max_updates", train.max_updates), ("max_time_s", train.max_time_s))
    limits = "".join(f", {name} {value}" for name, value in given if value is not None)
    yield f"  train      {train.epochs} epochs{limits}; procs {train.procs}, threads {train.threads}"


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summary of a finished job: results, cost, and the command to resume it."""
    state, run_dir = summary["state"], summary.get("run_dir", "")
    yield f"{state}: {summary.get('reason') or 'done'}"
    cluster = cluster_of(summary.get("cluster"))
    rate = cluster.samples_per_s if cluster is not None else summary.get("samples_per_s")  # None after a single update
    who = trained_by(summary["procs"], cluster)
    did = f"{summary['samples']:,} samples in {counted(summary['updates'], 'update')} {who}"
    yield f"  {did}" + (f", {rate:,.0f} samples/s" if rate else "")
    metrics = summary.get("metrics") or {}
    if metrics:
        yield "  " + ", ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}" for name, value in metrics.items()
        )
    if summary.get("train_loss") is not None:
        yield f"  training loss {summary['train_loss']:.4f} in the last epoch"
    if summary.get("best"):
        yield f"  best {Best(**summary['best'])}"
    if startup := summary.get("startup"):
        parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f}" for name, seconds in startup.items())
        yield f"  first update after {summary['startup_s']:.1f} s ({parts})"
    yield f"  batches: {_counts(summary['leases'])}; restarts: {summary.get('restarts', 0)}"
    if cluster is not None:
        yield f"  cluster: {', '.join(replace(cluster, samples_per_s=0.0).words)}"
    if summary.get("advice"):
        yield f"  {summary['advice']}"
    yield f"  run directory: {run_dir}"
    if state in ("stopped", "cancelled"):
        yield f"  {resume_words(Path(run_dir), cluster)}"


def plain_lines(values: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    """Yield nested values, one per line."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from plain_lines(value, indent + "  ")
        elif isinstance(value, list):
            yield from (f"{indent}{key}: {item}" for item in value)
        else:
            yield f"{indent}{key}: {value}"


def _call(part: Component) -> str:
    return f"{part.class_path}({', '.join(f'{name}={value!r}' for name, value in part.init_args.items())})"


def _counts(leases: Mapping[str, int]) -> str:
    others = ("skipped", "quarantined", "indeterminate", "redone")
    rest = "".join(f", {leases[name]:,} {name}" for name in others if leases.get(name))
    return f"{leases['done']:,} of {leases['total']:,} done{rest}"
