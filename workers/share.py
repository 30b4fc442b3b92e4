"""The fourth step of a job: model and data in shared memory, and the settings that workers get."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np

from hogwild.feeds.packed import Spec
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.ring import Ring
from hogwild.job.build import schedule_of
from hogwild.job.parts import Parts
from hogwild.job.source import Source
from hogwild.job.update_choice import ConflictEstimate, estimate_conflicts
from hogwild.monitoring.profile_report import Window
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.job_plan import JobPlan
from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.storage.artifact_cache import new_scratch
from hogwild.workers.child.spec import Compute, DataSide, DataSpec, Rules, WorkerSpec
from hogwild.workers.messages import Setup


@dataclass(frozen=True, slots=True)
class Shared:
    """A job in shared memory. `regions`: everything that a worker maps, by name."""

    model: SharedModel
    board: Scoreboard
    regions: Mapping[str, Region]
    worker_spec: WorkerSpec
    conflicts: ConflictEstimate

    @property
    def epoch(self) -> EpochPlan:
        """The division of the training data into batches, as they lie."""
        return self.worker_spec.data.train.plan

    @property
    def covered(self) -> np.ndarray:
        """Bytes (metrics, items) that mark the items which metrics of coverage count."""
        region, shape = self.regions.get("data-covered"), self.worker_spec.data.covered
        return np.zeros(shape, np.uint8) if region is None else region.array("u1", shape)

    def setups(self, plan: JobPlan, worker_spec: WorkerSpec) -> Callable[[int], tuple[Setup, Mapping[str, Region]]]:
        """Return what tells a worker, by its number, what it is and what it maps."""
        content, structure = cloudpickle.dumps(worker_spec), self.model.structure
        regions = {
            **self.regions,
            "worker_spec": Region.of_bytes("worker_spec", content),
            "structure": Region.of_bytes("structure", structure),
        }

        def set_up(worker: int) -> tuple[Setup, Mapping[str, Region]]:
            setup = Setup(
                worker=worker,
                rows=plan.rows,
                threads=plan.threads,
                flush_denormal=plan.job.train.flush_denormal,
                structure_nbytes=len(structure),
                cores=plan.cores[worker] if plan.cores else (),
            )
            return setup, regions

        return set_up


def share(plan: JobPlan, parts: Parts, profile: tuple[Window, Path] | None = None) -> Shared:
    """Put model and data into shared memory; there the job's objects are from now on. `profile`: see `Rules`. Raises
    MemoryShortError, ModelError, OptimizerError; then the caller has his model back."""
    model = SharedModel.build(
        parts.model,
        parts.loss,
        parts.optimizer,
        procs=plan.rows,
        state=plan.state,
        memory_format=parts.found.memory_format,
        late=parts.late,
        buffer_rules=parts.found.buffer_rules,
    )
    try:
        found, epoch = _arranged(plan, parts)
        regions, worker_spec = share_data(plan, parts, epoch, found, model.uses_channels_last, profile)
        board = Scoreboard.allocate(plan.rows)
    except BaseException:
        model.release()
        raise
    return Shared(model, board, {**model.regions, **regions, "scoreboard": board.region}, worker_spec, found)


def _arranged(plan: JobPlan, parts: Parts) -> tuple[ConflictEstimate, EpochPlan]:
    """Keep workers apart whose kernel writes the same rows; lay packed data out as the grid that is planned, and return
    the division of that. Raises MemoryShortError."""
    update, packed = parts.choice.update, parts.train.packed
    if update is None or packed is None:
        return ConflictEstimate(), parts.train.plan
    found = estimate_conflicts(
        update,
        parts.model,
        packed,
        writers=plan.writers,
        grid=plan.grid,
        copied=plan.copied,
        may_copy=plan.may_copy,
    )
    if found.grid is None:
        return found, parts.train.plan
    parts.train.packed = packed.copy_rows("data-train", found.grid.order())
    return found, GridPlan.of(found.grid, plan.job.data.batch_size)


def share_data(
    plan: JobPlan,
    parts: Parts,
    epoch: EpochPlan,
    found: ConflictEstimate,
    channels_last: bool,
    profile: tuple[Window, Path] | None = None,
) -> tuple[dict[str, Region], WorkerSpec]:
    """Put the data into shared memory; return the regions and the worker spec."""
    job = plan.job
    typical = parts.typical if plan.compile_key or plan.is_fused else ()
    regions: dict[str, Region] = {}
    splits: dict[str, DataSpec] = {}
    for name, source in (("train", parts.train), ("val", parts.val)):
        if source is None:
            continue
        divided = epoch if name == "train" else source.plan
        ring = source.held.ring if source.held is not None else None
        if source.streamed is not None and plan.ring is not None:
            ring = Ring.allocate("data-train", plan.ring)
        if ring is not None:
            regions[f"data-{name}"] = ring.region
            splits[name] = DataSpec(ring.spec, divided, "none")
        elif source.rollout is not None:
            splits[name] = DataSpec(source.rollout, divided, "none")
        else:
            regions[f"data-{name}"], spec = _shared(source, f"data-{name}", channels_last)
            is_ordered = name == "val" or found.grid is not None
            splits[name] = DataSpec(spec, divided, "none" if is_ordered else job.data.shuffle)
            source.tensors, source.resident, source.packed = (), None, None  # the shared copy is the only one
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
        fused=dict(found.hot) if plan.is_fused else None,
        compile=job.model.compile,
        compile_key=plan.compile_key,
        compile_scratch=new_scratch() if plan.compile_key else None,
        devices=plan.devices,
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
        seed=plan.seed,
        accumulate=job.train.accumulate,
        schedule=schedule_of(job, epoch),
        stepped=parts.stepped if parts.stepped is not None and parts.stepped.unit != "evaluation" else None,
        fail_on_nan=job.supervise.on_nan == "fail",
        max_staleness=job.train.max_staleness,
        sync_every=job.train.sync_every,
        profile=profile,
    )
    return regions, WorkerSpec(compute, data, rules)


def _shared(source: Source, name: str, channels_last: bool) -> tuple[Region, Spec]:
    """Return one data set in shared memory."""
    if source.packed is not None:
        return source.packed.region, source.packed.spec
    data = source.resident or ResidentData.from_tensors(name, source.tensors, channels_last=channels_last)
    return data.region, data.fields
