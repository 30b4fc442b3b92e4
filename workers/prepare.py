"""Preparation before the first worker starts: the layout of shared memory and whether it fits, the queue, and the
settings that workers get."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from torch.utils._pytree import tree_flatten

from hogwild import host
from hogwild.config.load import Job
from hogwild.errors import MemoryShortError, UsageError
from hogwild.feeds.packed import Spec
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.ring import Ring, RingSpec
from hogwild.formatting import counted, size
from hogwild.job.build import bytes_needed, schedule_of
from hogwild.job.checks import batch_of
from hogwild.job.data import ring_spec_of
from hogwild.job.parts import Parts
from hogwild.job.source import Source
from hogwild.job.update_choice import NO_GRID
from hogwild.parameters.exchange import COPIES
from hogwild.parameters.structure_file import check_apart
from hogwild.parameters.trial_step import trial_bytes
from hogwild.planning.cpu_plan import Plan
from hogwild.planning.device_placement import is_on_device
from hogwild.scheduling.batch_plan import StreamPlan
from hogwild.scheduling.grid_plan import GridPlan, Shape
from hogwild.scheduling.grid_schedule import GridSchedule
from hogwild.scheduling.lane_schedule import LaneSchedule
from hogwild.scheduling.range_schedule import LeaseSchedule
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.storage.artifact_cache import new_scratch
from hogwild.storage.run_directory import RunDir
from hogwild.training import torch_settings
from hogwild.training.compiled_model import model_key
from workers.child.spec import Compute, DataSide, DataSpec, Rules, WorkerSpec
from workers.session.ring_state import RingState

KEY_SAMPLES = 3  # samples in the batch that is inspected: the strides of a single sample say nothing


def check_lanes(job: Job, planned: Plan) -> None:
    """Raise UsageError for more workers than lanes."""
    lanes = job.data.lanes
    if lanes is not None and planned.rows > lanes:
        raise UsageError(
            f"data.lanes is {lanes}, but there are {planned.procs} workers (train.procs: {job.train.procs}), and each "
            f"needs a lane; set train.procs={lanes}, or raise data.lanes",
            code="config/contradiction",
        )


def check_memory(job: Job, parts: Parts, planned: Plan) -> int:
    """Return the bytes of shared memory the job will take. Raises MemoryShortError if there is not enough, also for the
    workers' own copies of the parameters (delta)."""
    rows = planned.rows
    ring = ring_spec_of(job, parts.train, rows)
    data = parts.train.nbytes + (parts.val.nbytes if parts.val else 0) + (ring.nbytes if ring is not None else 0)
    parameters = sum(parameter.nbytes for parameter in parts.model.parameters())
    there = sum(source.nbytes for source in (parts.train, parts.val) if source is not None and source.is_there_already)
    # First, because the trial step that measures the rest needs memory itself.
    fresh = data - there
    _require(fresh + trial_bytes(parts.optimizer), fresh)
    needed = bytes_needed(job, parts, planned) + Scoreboard.nbytes(rows)
    copies = COPIES * parameters * rows if job.train.exchange == "delta" and rows > 1 else 0
    _require(needed + copies - (data - fresh), fresh)
    return needed


def _require(needed: int, data: int) -> None:
    memory = host.available_memory()
    if needed > memory.bytes:
        raise MemoryShortError(
            f"the job needs {size(needed)} of memory ({size(data)} of it for data), but only {size(memory.bytes)} "
            f"are free ({memory.limited_by}); use less data, a smaller model, fewer procs, or a larger limit",
            code="run/memory-short",
        )


def check_cluster(parts: Parts, nodes: int) -> None:
    """Raise UsageError for data that cannot be shared out over so many nodes."""
    plan = parts.train.plan
    if isinstance(plan, StreamPlan):
        raise UsageError(
            "data.train is an iterable, which nodes cannot divide: a cluster needs data with a length and an index",
            code="cluster/iterable",
        )
    if plan.batches < nodes:
        raise UsageError(
            f"an epoch has {counted(plan.batches, 'batch')}, too few for {nodes} nodes: lower data.batch_size, or use "
            "fewer nodes",
            code="cluster/too-few-batches",
        )


def share_data(
    job: Job,
    parts: Parts,
    channels_last: bool,
    procs: int,
    devices: tuple[str, ...] = (),
    profile: tuple[int, int, str] | None = None,
) -> tuple[dict[str, Region], WorkerSpec]:
    """Put the data into shared memory; return the regions and the worker spec."""
    compiles = job.model.compile == "inductor"
    is_fused, streamed, typical = parts.choice.update is not None, parts.train.streamed, list[list[Any]]()
    if streamed is not None and (compiles or is_fused):
        typical = [streamed.head()] if is_fused else streamed.typical()
    compile_key = _compile_key(job, parts, typical, channels_last) if compiles else ""  # now, before data moves below
    regions: dict[str, Region] = {}
    splits: dict[str, DataSpec] = {}
    rollouts: list[tuple[str, Any]] = []
    for name, source in (("train", parts.train), ("val", parts.val)):
        if source is not None and (ring := _ring_of(job, source, procs)) is not None:
            regions[f"data-{name}"] = ring.region
            splits[name] = DataSpec(ring.spec, source.plan, "none")
        elif source is not None and source.rollout is not None:
            splits[name] = DataSpec(source.rollout, source.plan, "none")
            rollouts.append((f"data.{name}", source.rollout))
        elif source is not None:
            regions[f"data-{name}"], spec = _shared(source, f"data-{name}", channels_last)
            is_ordered = name == "val" or parts.meetings.grid is not None
            splits[name] = DataSpec(spec, source.plan, "none" if is_ordered else job.data.shuffle)
            source.tensors, source.resident, source.packed = (), None, None  # the shared copy is the only one
    sent = [("evaluate.metrics", parts.panel), ("data.transform", parts.transform), *rollouts]
    for what, thing in sent if procs else ():
        check_apart(parts.model, what, thing)
    outputs = None
    if parts.found.output is not None and parts.outputs_shape:
        outputs = FieldSpec(parts.found.output.dtype, parts.outputs_shape, 0)
        regions["data-outputs"] = Region.allocate("data-outputs", outputs.nbytes)
    covered = parts.covered
    if parts.panel.coverages and parts.val is not None:
        regions["data-covered"] = Region.allocate("data-covered", covered[0] * covered[1])
    compute = Compute(
        grad_clip=job.train.grad_clip,
        loss_names=parts.found.loss_names,
        precision=job.train.precision,
        panel=parts.panel,
        inference=parts.found.infers,
        progressive=job.evaluate.progressive,
        fused=dict(parts.meetings.hot) if is_fused else None,
        compile=job.model.compile,
        compile_key=compile_key,
        compile_scratch=new_scratch() if compiles else None,
        devices=devices,
    )
    data = DataSide(
        train=splits["train"],
        val=splits.get("val"),
        transform=parts.transform,
        copies_slots=parts.found.writes_inputs or parts.transform is not None,
        outputs=outputs,
        covered=covered,
        typical=typical,
    )
    rules = Rules(
        seed=job.seed,
        accumulate=job.train.accumulate,
        schedule=schedule_of(job, parts.train.plan),
        stepped=parts.stepped if parts.stepped is not None and parts.stepped.unit != "evaluation" else None,
        fail_on_nan=job.supervise.on_nan == "fail",
        max_staleness=job.train.max_staleness,
        sync_every=job.train.sync_every,
        profile=profile,
    )
    return regions, WorkerSpec(compute, data, rules)


def covered_items(parts: Parts, regions: Mapping[str, Region]) -> np.ndarray:
    """Return the bytes (metrics, items) that mark the items which metrics of coverage count."""
    region = regions.get("data-covered")
    return np.zeros(parts.covered, np.uint8) if region is None else region.array("u1", parts.covered)


def _ring_of(job: Job, source: Source, procs: int) -> Ring | None:
    """Return the ring of data in slots, allocated here for streamed data; None for any other data."""
    if source.held is not None:
        return source.held.ring
    spec = ring_spec_of(job, source, procs)
    return None if spec is None else Ring.allocate("data-train", spec)


def ring_state(
    job: Job, parts: Parts, procs: int, regions: Mapping[str, Region], worker_spec: WorkerSpec
) -> RingState | None:
    """Return the ring state of a job with streamed training data, else None."""
    spec = worker_spec.data.train.data
    if parts.train.streamed is None or not isinstance(spec, RingSpec):
        return None
    update = min(job.train.accumulate, parts.train.plan.batches)
    in_order = procs < 2
    schedule = StreamSchedule(parts.train.plan, spec.slots, spec.loaders, update, job.train.epochs, in_order=in_order)
    return RingState(Ring(regions["data-train"], spec), schedule, parts.train.streamed.stream)


def _compile_key(job: Job, parts: Parts, typical: Sequence[list[Any]], channels_last: bool) -> str:
    """Return the cache key of the model and its batch sizes. `typical`: example batches of a stream."""
    plans = [parts.train.plan, *([parts.val.plan] if parts.val is not None else [])]
    sizes = [(plan.samples, plan.batch_size, plan.batches) for plan in plans]
    rows = [_rows(batch) for batch in (batch_of(parts, KEY_SAMPLES), *_validation(parts.val))]
    streamed = [(_rows(batch), len(batch[-1])) for batch in typical]
    transform = job.data.transform.class_path if job.data.transform is not None else ""
    settings = (job.train.precision, transform, channels_last, is_on_device(job), torch_settings.current())
    return model_key(
        parts.model, parts.loss, [sizes, rows, streamed, parts.found.output_shape[1:], settings, _thaws(parts)]
    )


def _thaws(parts: Parts) -> list[list[str]]:
    """Return the parameters of each thaw, in order; the update number of a thaw does not change the code."""
    late = parts.late
    return [[name for name in late if late[name] == update] for update in sorted(set(late.values()))]


def _rows(batch: list[Any]) -> tuple[Any, ...]:
    """Return the nesting of inputs and target, and dtype, shape and strides of one row of each."""
    leaves, nesting = tree_flatten(batch)
    return (str(nesting), [(leaf.dtype, tuple(leaf.shape[1:]), leaf.stride()[1:]) for leaf in leaves])


def _validation(source: Source | None) -> Iterator[list[Any]]:
    """Yield a few samples; for pre-built batches the first and the last one, which are compiled for."""
    if source is None or source.held is None:
        yield from [] if source is None else [source.head(KEY_SAMPLES)]
        return
    for slot in sorted({0, source.held.ring.spec.slots - 1}):
        yield source.held.batch(slot)


def _shared(source: Source, name: str, channels_last: bool) -> tuple[Region, Spec]:
    """Return one data set in shared memory."""
    if source.packed is not None:
        return source.packed.region, source.packed.spec
    data = source.resident or ResidentData.from_tensors(name, source.tensors, channels_last=channels_last)
    return data.region, data.fields


def grid_before(rundir: RunDir) -> Shape | None:
    """Return the grid of the earlier attempt, or NO_GRID: a resume continues in the same cells. None: of a version
    whose grids were others; the checkpoint will be refused."""
    match (rundir.read_json("env.json") or {}).get("grid"):
        case [int(rows), int(columns), int(starts)]:
            return rows, columns, starts
        case None:
            return NO_GRID
    return None


def training_queue(
    job: Job,
    parts: Parts,
    procs: int,
    ids: "count[int]",
    streamed: RingState | None = None,
    kind: type[WorkQueue] = WorkQueue,
) -> WorkQueue:
    """Return the queue of the job, of this `kind`. Over a grid no two workers hold parts of one row block; a lane
    belongs to one worker; of a stream they hold filled slots of the ring."""
    plan = parts.train.plan
    limits = Limits(
        procs=procs,
        epochs=job.train.epochs,
        accumulate=job.train.accumulate,
        max_updates=job.train.max_updates,
        max_attempts=job.supervise.max_item_attempts,
        redo_indeterminate=job.supervise.on_indeterminate == "redo",
    )
    schedule: LeaseSchedule | None = None
    if isinstance(plan, GridPlan):
        schedule = GridSchedule(plan, limits, seed=job.seed)
    elif streamed is not None:
        schedule = streamed.schedule
    elif plan.lanes is not None:
        schedule = LaneSchedule(plan, limits)
    return kind(plan, limits, ids=ids, schedule=schedule)
