"""The key under which the compiled code of a job's model is kept."""

from collections.abc import Iterator
from typing import Any

from torch.utils._pytree import tree_flatten

from hogwild.config.load import Job
from hogwild.job.checks import batch_of
from hogwild.job.parts import Parts
from hogwild.job.source import Source
from hogwild.parameters.shared_model import wants_channels_last
from hogwild.training import torch_settings
from hogwild.training.compiled_model import model_key

KEY_SAMPLES = 3  # samples in the batch that is inspected: the strides of a single sample say nothing


def compile_key(job: Job, parts: Parts, *, is_on_device: bool) -> str:
    """Return the cache key of the model and its batch sizes."""
    channels_last = wants_channels_last(parts.model, parts.found.memory_format)
    plans = [parts.train.plan, *([parts.val.plan] if parts.val is not None else [])]
    sizes = [(plan.samples, plan.batch_size, plan.batches) for plan in plans]
    rows = [_rows(batch) for batch in (batch_of(parts, KEY_SAMPLES), *_validation(parts.val))]
    streamed = [(_rows(batch), len(batch[-1])) for batch in parts.typical]
    transform = job.data.transform.class_path if job.data.transform is not None else ""
    settings = (job.train.precision, transform, channels_last, is_on_device, torch_settings.current())
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
