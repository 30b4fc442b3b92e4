"""A job as others see it: one flat row of JSON, from its record, its order and its run directory."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hogwild.monitoring.run_status import glance_of
from hogwild.service.folders import JobFolder
from hogwild.service.states import JobOrder, JobRecord
from hogwild.storage.records import to_json

Row = dict[str, Any]
OF_JOB = ("id", "state", "error", "error_code", "exit_status", "attempt", "pid", "started", "ended", "moves", "fixed")
OF_ORDER = ("number", "name", "job_file", "sweep", "submitted", "priority", "cpus", "memory")
GLANCE = ("progress", "left_s", "epoch", "epochs", "updates", "samples", "samples_per_s", "loss", "metrics", "restarts")


def row_of(job: JobRecord, order: JobOrder, folder: JobFolder, record: Mapping[str, Any], waits: str | None) -> Row:
    """Return the row of a job. `record`: its run's status.json; `waits`: why a queued job waits."""
    glance = glance_of({"name": order.name, "run_dir": "", **record}) if record else None
    figures = {name: getattr(glance, name) for name in GLANCE} if glance else dict.fromkeys(GLANCE)
    is_training = job.state in ("running", "stopping")
    if not is_training:
        figures.update(left_s=None, samples_per_s=None if glance is None else glance.samples_per_s)
    return {
        **{name: getattr(job, name) for name in OF_JOB},
        **{name: getattr(order, name) for name in OF_ORDER},
        "doing": glance.state if glance and is_training else None,
        "reason": waits if job.state == "queued" and waits else job.reason,
        "run_dir": str(folder.run),
        "overrides": [*order.overrides, *order.changes],
        "sweep_values": dict(order.sweep_values),
        "gpus": list(job.gpus),
        "cores": list(job.cores),
        "elastic": {"min": order.elastic.least, "max": order.elastic.most} if order.elastic else None,
        "moving_to": list(job.move.cores) if job.move else None,
        "best": to_json(asdict(glance.best)) if glance and glance.best else None,
        "workers": len(glance.workers) if glance else None,
        **to_json(figures),
    }
