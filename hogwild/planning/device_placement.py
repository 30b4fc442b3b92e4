"""The device of each worker, and the place of the shared parameters: decided in the parent, before workers start.

    placement       parameters                                         exchange
    cpu             the flats, in host memory                          direct, or delta if asked for
    cuda-replica    a copy on each worker's device, the flats master   delta, through host memory
    cuda-shared     the flats on one device, shared by all workers     direct

Nothing here creates a context: GPUs are counted by the driver's library (NVML)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hogwild.config.load import Job
from hogwild.config.schema import Train
from hogwild.devices import discovery
from hogwild.devices.kinds import CUDA
from hogwild.errors import DeviceSharingError, UsageError
from hogwild.planning.cpu_plan import Plan

CPU, REPLICA, SHARED = "cpu", "cuda-replica", "cuda-shared"
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def with_devices(planned: Plan, job: Job) -> Plan:
    """Add a device for each worker to the plan, if the job is not trained on the CPU; with `procs` 0 this process
    trains, on its device. Raises UsageError."""
    if not is_on_device(job):
        obstacle = _obstacle(job) if discovery.visible_gpus() and job.train.device == "auto" else ""
        reason = f"{planned.reason}; the GPU is not used: {obstacle}" if obstacle else planned.reason
        return replace(planned, reason=reason)
    devices = _devices(job.train, discovery.resolve(job.train.device), planned.rows)
    placement, why = job.train.placement if job.train.placement == SHARED else REPLICA, ""
    if placement == SHARED:
        _check_sharing(devices, os.environ)
        if planned.procs == 0:
            placement, why = REPLICA, " (one process has nothing to share)"
    reason = f"{planned.reason}; {placement} on {', '.join(devices)}{why}"
    return replace(planned, devices=devices, placement=placement, reason=reason)


def _check_sharing(devices: Sequence[str], environ: Mapping[str, str]) -> None:
    """Check all conditions known here. A container may still forbid sharing, which the first worker finds out."""
    if len(set(devices)) > 1:
        raise DeviceSharingError(
            f"train.placement: {SHARED}: all workers must be on one GPU, but they are on {', '.join(devices)}; set "
            f"train.device: {devices[0]}, or use {REPLICA}"
        )
    for name in ALLOCATOR:
        if "expandable_segments:true" in environ.get(name, "").replace(" ", "").lower():
            raise DeviceSharingError(
                f"train.placement: {SHARED}: {name}={environ[name]}: other processes cannot map memory in expandable "
                f"segments; remove expandable_segments, or use {REPLICA}"
            )


def exchange_of(job: Job, procs: int, *, fused: bool, placement: str) -> str:
    """Return the exchange of a job, direct or delta. `auto` is direct: delta may be faster, but its updates are older.
    One worker equals the plain loop bit by bit; a kernel writes the flats, in delta with private copies of hot rows."""
    if placement != CPU:
        return "direct" if placement == SHARED else "delta"
    return "delta" if (job.train.exchange == "delta" and procs > 1 and not fused) else "direct"


def is_open(job: Job) -> bool:
    """Return whether the job leaves it to us where it computes."""
    return job.train.device == "auto" and job.train.placement == "auto"


def on_cpu(planned: Plan, why: str) -> Plan:
    """Return the plan without the devices found for a job that is better off without them: `why`, "" if it is not."""
    if not (why and planned.devices):
        return planned
    return replace(planned, devices=(), placement=CPU, reason=f"{planned.reason}, but the GPU is not used: {why}")


def is_on_device(job: Job) -> bool:
    """Return whether this job computes on a device other than the CPU. Raises UsageError for a missing device. What it
    is made of may still keep a job on the CPU that leaves this open (`Parts.keeps_to_cpu`)."""
    kind = discovery.resolve(job.train.device)
    if kind == CPU and job.train.placement in (REPLICA, SHARED):
        discovery.resolve(CUDA)  # raises UsageError
    if kind == CPU or job.train.placement == CPU:
        return False
    return not is_open(job) or not _obstacle(job)


def _obstacle(job: Job) -> str:
    """Return the setting of the job that a replica does not support, for a device chosen automatically."""
    if job.train.exchange == "direct":
        return "train.exchange is direct"
    if job.train.update == "fused":
        return "train.update is fused, and kernels run on the CPU"
    return "optimizer.state is shared" if job.optimizer.state == "shared" else ""


def _devices(train: Train, kind: str, procs: int) -> tuple[str, ...]:
    chosen: Sequence[int] | None = train.device_per_worker
    there = discovery.count(kind)
    if chosen is None:
        _, _, index = train.device.partition(":")
        chosen = [int(index) if index else worker % there for worker in range(procs)]
    if len(chosen) != procs:
        raise UsageError(
            f"train.device_per_worker: must name one device for each of {procs} worker{'' if procs == 1 else 's'}, "
            f"got {len(chosen)}",
            code="config/contradiction",
        )
    names = tuple(f"{kind}:{number}" for number in chosen)
    for name in names:
        discovery.resolve(name)
    return names
