"""The cores, memory and GPUs that a job file asks for, and its place in the queue."""

from typing import Any

from hogwild import host
from hogwild.config.field_types import nbytes
from hogwild.config.load import Job
from hogwild.config.schema import ElasticCores
from hogwild.errors import UsageError
from hogwild.formatting import size
from hogwild.service.schedule import Machine
from hogwild.service.states import Elastic


def wishes_of(job: Job, machine: Machine) -> dict[str, Any]:
    """Return the fields of an order that the job file decides. Raises UsageError as `cores_for` does."""
    return {
        "name": job.name,
        "cpus": cores_for(job, machine),
        "memory": reserved_bytes(job),
        "gpus": job.resources.gpus,
        "elastic": elastic_of(job, machine),
        **job.queue.model_dump(exclude={"elastic"}),
    }


def cores_for(job: Job, machine: Machine) -> int:
    """Return the physical cores that a job is given: `resources.cpus`, or workers x threads, at most those of the
    machine. Raises UsageError if it asks for more than the machine has."""
    cores, procs, threads = len(machine.cores), job.train.procs, job.train.threads
    memory = host.machine_memory().bytes
    for name, wanted, there in (
        ("cpus", job.resources.cpus or 0, cores),
        ("gpus", job.resources.gpus, len(machine.gpus)),
        ("memory", reserved_bytes(job), memory),
    ):
        if wanted > there:
            unit = size if name == "memory" else str
            raise UsageError(
                f"resources.{name}: must be <= {unit(there)}, which is what this machine has, got {unit(wanted)}",
                code="service/too-much",
            )
    elastic = elastic_of(job, machine)
    if job.resources.cpus is not None:
        wish = job.resources.cpus
    elif procs == "auto":
        wish = cores
    else:
        wish = min(max(procs, 1) * (threads if isinstance(threads, int) else 1), cores)
    return wish if elastic is None else min(max(wish, elastic.least), elastic.most)


def elastic_of(job: Job, machine: Machine) -> Elastic | None:
    """Return the cores that a job may have while it runs; None if it keeps those that it begins with. Raises UsageError
    if it asks for more than the machine has."""
    is_bound = job.train.pin or job.data.lanes is not None or job.resources.gpus > 0
    if job.queue.elastic is None and (job.train.procs != "auto" or is_bound):
        return None
    given, cores = job.queue.elastic or ElasticCores(), len(machine.cores)
    threads = job.train.threads if isinstance(job.train.threads, int) else 1
    least = max(given.min, job.supervise.min_workers * threads)
    most = given.max if isinstance(given.max, int) else cores
    if least > cores:
        if job.queue.elastic is None:
            return None
        raise UsageError(
            f"queue.elastic.min: the job needs {least} cores (min {given.min}; supervise.min_workers "
            f"{job.supervise.min_workers} x {threads} threads); this machine has {cores}",
            code="service/too-much",
        )
    return Elastic(least, max(most, least), threads)


def reserved_bytes(job: Job) -> int:
    return 0 if job.resources.memory is None else nbytes(job.resources.memory)
