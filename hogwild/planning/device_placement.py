"""The device of each worker, and the place of the shared parameters: decided in the parent, before workers start.

    placement       parameters                                         exchange
    cpu             the flats, in host memory                          direct, or delta if asked for
    cuda-replica    a copy on each worker's device, the flats master   delta, through host memory
    cuda-shared     the flats on one device, shared by all workers     direct

Nothing here creates a context: GPUs are counted by the driver's library (NVML)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hogwild.config.load import Job
from hogwild.config.schema import Train
from hogwild.devices import discovery
from hogwild.devices.kinds import CUDA
from hogwild.errors import DeviceSharingError, UsageError
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.job_plan import CPU, REPLICA, SHARED, JobPlan, plan_job

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Devices:
    """The kind of device that a job asks for, or finds, how many there are, and the settings of torch's allocator."""

    kind: str = CPU
    count: int = 1
    allocator: Mapping[str, str] | None = None

    @classmethod
    def of(cls, train: Train) -> "Devices":
        """Look for the devices of a job, once. Raises UsageError for a missing one."""
        kind = discovery.resolve(train.device)
        if kind == CPU and train.placement in (REPLICA, SHARED):
            discovery.resolve(CUDA)  # raises UsageError
        return cls(kind, discovery.count(kind), {name: os.environ.get(name, "") for name in ALLOCATOR})


def planned(job: Job) -> JobPlan:
    """Return the plan of a job that is not trained here now, such as one that is checked or evaluated."""
    return placed(plan_job(job, MachineFacts.here()), Devices.of(job.train))


def placed(plan: JobPlan, found: Devices) -> JobPlan:
    """Add a device for each worker to the plan, if the job is not trained on the CPU; with `procs` 0 this process
    trains, on its device. What it is made of may still keep a job on the CPU that leaves this open (`completed`).
    Raises UsageError."""
    train = plan.job.train
    obstacle = _obstacle(plan.job) if found.kind != CPU and is_open(plan.job) else ""
    if found.kind == CPU or train.placement == CPU or obstacle:
        return replace(plan, reason=f"{plan.reason}; the GPU is not used: {obstacle}") if obstacle else plan
    devices = _devices(train, found, plan.rows)
    placement, why = train.placement if train.placement == SHARED else REPLICA, ""
    if placement == SHARED and plan.procs == 0:
        placement, why = REPLICA, " (one process has nothing to share)"
    elif placement == SHARED:
        _check_sharing(devices, found.allocator or {})
    reason = f"{plan.reason}; {placement} on {', '.join(devices)}{why}"
    return replace(plan, devices=devices, placement=placement, reason=reason)


def _check_sharing(devices: Sequence[str], allocator: Mapping[str, str]) -> None:
    """Check all conditions known here. A container may still forbid sharing, which the first worker finds out."""
    if len(set(devices)) > 1:
        raise DeviceSharingError(
            f"train.placement: {SHARED}: all workers must be on one GPU, but they are on {', '.join(devices)}; set "
            f"train.device: {devices[0]}, or use {REPLICA}"
        )
    for name, value in allocator.items():
        if "expandable_segments:true" in value.replace(" ", "").lower():
            raise DeviceSharingError(
                f"train.placement: {SHARED}: {name}={value}: other processes cannot map memory in expandable "
                f"segments; remove expandable_segments, or use {REPLICA}"
            )


def is_open(job: Job) -> bool:
    """Return whether the job leaves it to us where it computes."""
    return job.train.device == "auto" and job.train.placement == "auto"


def _obstacle(job: Job) -> str:
    """Return the setting of the job that a replica does not support, for a device chosen automatically."""
    if job.train.exchange == "direct":
        return "train.exchange is direct"
    if job.train.update == "fused":
        return "train.update is fused, and kernels run on the CPU"
    return "optimizer.state is shared" if job.optimizer.state == "shared" else ""


def _devices(train: Train, found: Devices, procs: int) -> tuple[str, ...]:
    chosen: Sequence[int] | None = train.device_per_worker
    if chosen is None:
        _, _, index = train.device.partition(":")
        chosen = [int(index) if index else worker % found.count for worker in range(procs)]
    if len(chosen) != procs:
        raise UsageError(
            f"train.device_per_worker: must name one device for each of {procs} worker{'' if procs == 1 else 's'}, "
            f"got {len(chosen)}",
            code="config/contradiction",
        )
    for number in chosen:
        discovery.check_index(found.kind, number, found.count)
    return tuple(f"{found.kind}:{number}" for number in chosen)
