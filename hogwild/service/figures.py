"""Figures of the service in Prometheus' text format: jobs by state, cores, the queue, each live job, the process."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hogwild import host
from hogwild.monitoring.prometheus import Family
from hogwild.service.schedule import Machine
from hogwild.service.states import LIVE, STATES

OF_A_JOB = {
    "progress": ("job_progress_ratio", "The part of the job that is done, 0 to 1."),
    "samples_per_s": ("job_samples_per_second", "Of all its workers, since the record before."),
    "loss": ("job_loss", "Mean training loss per batch since the record before."),
    "updates": ("job_updates_total", "Updates applied by all its workers."),
    "restarts": ("job_restarts_total", "Of its workers."),
}


def exposition(rows: Sequence[Mapping[str, Any]], machine: Machine) -> str:
    """Return the figures. `rows`: of all jobs."""
    return "".join(f"{line}\n" for family in _families(rows, machine) for line in family.lines({}))


def _families(rows: Sequence[Mapping[str, Any]], machine: Machine) -> Iterator[Family]:
    live = [row for row in rows if row["state"] in LIVE]
    states = [row["state"] for row in rows]
    used = sum(len(row["cores"]) for row in live)
    cpus = sum(len(core) for core in machine.cores)
    yield Family("service_jobs", "Jobs by state.", [({"state": one}, float(states.count(one))) for one in STATES])
    yield Family.one("service_queue_jobs", "Jobs that wait for their start.", states.count("queued"))
    yield Family.one("service_cores", "Physical cores that jobs share.", len(machine.cores))
    yield Family.one("service_cpus", "Logical CPUs that jobs share.", cpus)
    yield Family.one("service_cpus_used", "Of them, those that live jobs have.", used)
    yield Family.one("service_gpus", "GPUs that jobs share.", len(machine.gpus))
    yield Family.one("service_gpus_used", "Of them, those that live jobs have.", sum(len(row["gpus"]) for row in live))
    yield Family.one("service_memory_bytes", "PSS of the service's process.", host.pss_bytes(os.getpid()))
    yield Family.one("service_cpu_seconds_total", "Processor time of the service's process.", host.cpu_s(os.getpid()))
    for field, (name, words) in OF_A_JOB.items():
        yield Family(name, words, [(_labels(row), row[field]) for row in live])
    yield Family("job_cpus", "Logical CPUs of the job.", [(_labels(row), float(len(row["cores"]))) for row in live])


def _labels(row: Mapping[str, Any]) -> Mapping[str, str]:
    return {"job": row["id"], "number": str(row["number"]), "name": row["name"]}
