"""Completion of a plan: by what the built objects of the job say, and by the memory that they will take."""

from dataclasses import replace
from math import prod
from typing import Any

from torch.utils._pytree import tree_flatten

from hogwild import host
from hogwild.config.load import Job
from hogwild.errors import MemoryShortError, UsageError
from hogwild.formatting import size
from hogwild.job.parts import Parts, batch_of
from hogwild.job.update_choice import sides_of
from hogwild.nn import cut_to_use, tables_in
from hogwild.optimizers import FTRL
from hogwild.parameters.exchange import COPIES
from hogwild.parameters.optimizer_state import trial_bytes
from hogwild.parameters.shared_model import SharedModel, suits_sharing, wants_channels_last
from hogwild.planning.cpu_plan import ProcessMemory, may_fork
from hogwild.planning.job_plan import JobFacts, JobPlan, completed
from hogwild.scheduling.grid_plan import Shape
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.training import torch_settings
from hogwild.training.compiled_model import model_key


def complete(plan: JobPlan, parts: Parts, before: Shape | None = None, *, must_fit: bool = False) -> JobPlan:
    """Return the complete plan of a job with these objects. `before`: the grid of the run that is resumed. `must_fit`:
    raise MemoryShortError if there is not enough memory. Raises UsageError."""
    if must_fit:  # first, because further checks, and the trial step that measures the rest, need memory themselves
        _require(_trial_bytes(parts), 0)
    plan = completed(plan, _facts(plan, parts, before))
    outputs = parts.outputs
    sizes = {
        "data-train": parts.train.nbytes if plan.ring is None else plan.ring.nbytes,
        "data-val": parts.val.nbytes if parts.val is not None else 0,
        "data-outputs": outputs.nbytes if outputs is not None else 0,
        "data-covered": prod(parts.covered),
    }
    data = {name: nbytes for name, nbytes in sizes.items() if nbytes}
    sources = {"data-train": parts.train, "data-val": parts.val}
    there = {name for name, source in sources.items() if source is not None and source.is_there_already}
    fresh = sum(nbytes for name, nbytes in data.items() if name not in there)
    if must_fit:
        _require(fresh + _trial_bytes(parts), fresh)
    model = SharedModel.bytes_needed(parts.model, parts.optimizer, procs=plan.rows, state=plan.state, late=parts.late)
    _note_growth(plan, parts)
    job, is_on_device = plan.job, bool(plan.devices)
    key = compile_key(job, parts, is_on_device=is_on_device) if job.model.compile == "inductor" else ""
    plan = replace(plan, memory={**data, **model, "scoreboard": Scoreboard.nbytes(plan.rows)}, compile_key=key)
    if must_fit:
        parameters = sum(parameter.nbytes for parameter in parts.model.parameters())
        copies = COPIES * parameters * plan.rows if plan.job.train.exchange == "delta" and plan.rows > 1 else 0
        workers = ProcessMemory().further(plan.procs, is_forked=may_fork(plan.job.train.device))
        _require(sum(plan.memory.values()) + copies + workers - (sum(data.values()) - fresh), fresh)
    return plan


def _note_growth(plan: JobPlan, parts: Parts) -> None:
    """Note the shared memory of tables that may grow, which the plan does not count before they do. Raises UsageError
    for an exchange that copies whole tables."""
    growing = {path: table for path, table in tables_in(parts.model).items() if table.max_capacity > table.capacity}
    if not growing:
        return
    if plan.exchange == "delta" and plan.rows > 1:
        raise UsageError(
            f"train.exchange: delta: each worker would have a copy of {next(iter(growing)) or 'the table'}, and miss "
            "the rows that it grows by (max_capacity); use direct",
            code="usage/bad-value",
        )
    more = SharedModel.bytes_to_grow(parts.model, parts.optimizer, procs=plan.rows, state=plan.state)
    tables = ", ".join(f"{path} from {one.capacity:,} to {one.max_capacity:,}" for path, one in growing.items())
    parts.notes.append(f"rows by id may grow ({tables}): {size(more)} of shared memory, counted once they do")


def _trial_bytes(parts: Parts) -> int:
    with cut_to_use(parts.model, parts.optimizer):
        return trial_bytes(parts.optimizer)


def _facts(plan: JobPlan, parts: Parts, before: Shape | None) -> JobFacts:
    train, update, optimizer = parts.train, parts.choice.update, parts.optimizer
    kinds = (("stream", train.streamed), ("packed", train.packed), ("rollout", train.rollout))
    is_auto = plan.job.optimizer.state == "auto" and plan.rows > 1
    return JobFacts(
        feed=next((name for name, there in kinds if there is not None), "resident"),
        epoch=train.plan,
        why=parts.choice.why,
        is_fused=update is not None,
        has_named_rows=parts.has_named_rows,
        keeps_to_cpu=parts.keeps_to_cpu,
        adds_sums=type(optimizer) is FTRL,
        suits_sharing=is_auto and suits_sharing(parts.model, optimizer, parts.late),
        slot=None if train.streamed is None else train.streamed.ring_spec(1, 1),
        sides=sides_of(update, parts.model) if update is not None and train.packed is not None else (),
        grid_before=before,
    )


def _require(needed: int, data: int) -> None:
    memory = host.available_memory()
    if needed > memory.bytes:
        of_data = f" ({size(data)} of it for data)" if data else ""
        raise MemoryShortError(
            f"the job needs {size(needed)} of memory{of_data}, but only {size(memory.bytes)} "
            f"are free ({memory.limited_by}); use less data, a smaller model, fewer procs, or a larger limit",
            code="run/memory-short",
        )


KEY_SAMPLES = 3  # samples in the batch that is inspected: the strides of a single sample say nothing


def compile_key(job: Job, parts: Parts, *, is_on_device: bool) -> str:
    """Return the cache key of the model and its batch sizes."""
    channels_last = wants_channels_last(parts.model, parts.found.memory_format)
    plans = [parts.train.plan, *([parts.val.plan] if parts.val is not None else [])]
    sizes = [(plan.samples, plan.batch_size, plan.batches) for plan in plans]
    batches = [batch_of(parts, KEY_SAMPLES)]
    if parts.val is not None and parts.val.held is not None:  # pre-built: the first and the last one are compiled for
        held = parts.val.held
        batches += [held.batch(slot) for slot in sorted({0, held.ring.spec.slots - 1})]
    elif parts.val is not None:
        batches.append(parts.val.head(KEY_SAMPLES))
    rows = [_rows(batch) for batch in batches]
    streamed = [(_rows(batch), len(batch[-1])) for batch in parts.typical]
    transform = job.data.transform.class_path if job.data.transform is not None else ""
    settings = (job.train.precision, transform, channels_last, is_on_device, torch_settings.current())
    # The parameters of each thaw, in order: the update number of a thaw does not change the code.
    late = parts.late
    thaws = [[name for name in late if late[name] == update] for update in sorted(set(late.values()))]
    return model_key(parts.model, parts.loss, [sizes, rows, streamed, parts.found.output_shape[1:], settings, thaws])


def _rows(batch: list[Any]) -> tuple[Any, ...]:
    """Return the nesting of inputs and target, and dtype, shape and strides of one row of each."""
    leaves, nesting = tree_flatten(batch)
    return (str(nesting), [(leaf.dtype, tuple(leaf.shape[1:]), leaf.stride()[1:]) for leaf in leaves])
