"""First calls of a model under torch.compile: one worker compiles everything the job needs before the first batch is
leased, and changes nothing else.

    the first and the last batch (it may be smaller): forward and backward; of the validation data: forward
    streamed data, of which nothing is read yet: batches of the same sizes     (`Streamed.typical`)
    parameters frozen until an update: all of the above before each thaw, and after it
    afterwards: no gradient, the buffers and the random state as before"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hogwild.feeds.transform import transformed
from hogwild.shared_memory.scoreboard import Row
from hogwild.training.compiled_model import ModelCache, refusing
from hogwild.workers.child.compile_once import make_all_ready

if TYPE_CHECKING:
    from hogwild.feeds.batch import Feed
    from hogwild.parameters.worker_model import WorkerModel
    from hogwild.training.autograd_update import AutogradUpdate
    from hogwild.training.evaluator import Evaluator
    from hogwild.workers.child.spec import DataSide, WorkerSpec


def make_model_ready(
    worker_spec: "WorkerSpec",
    model: "WorkerModel",
    update: "AutogradUpdate",
    feed: "Feed",
    evaluator: "Evaluator | None",
    row: Row,
    lifeline: int | None,
) -> str:
    """Make the compiled model ready; return a log message. Raises ModelError, ParentGone."""

    def run() -> None:
        model.keep_buffers()
        try:
            for updates in (0, *model.thaws):  # always from 0: this order decides which code is compiled for any size
                update.start_at(updates)
                for inputs, target in _batches(worker_spec.data, model, feed):
                    update.backward(inputs, target)
                    row.beat()
                if evaluator is not None and (val := worker_spec.data.val) is not None:
                    evaluator.sums(sorted({0, val.plan.batches - 1}), row.beat)
        finally:
            update.start_at(row.board.job_updates())
            model.restore_buffers()

    cache = ModelCache.of(worker_spec.compute.compile_key, worker_spec.compute.compile_scratch)
    undisturbed = torch.random.fork_rng(devices=[])(refusing(run))  # restores the random state after each call
    return make_all_ready("the compiled model", [(cache, undisturbed)], row, lifeline)


def _batches(data: "DataSide", model: "WorkerModel", feed: "Feed") -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield (inputs, target) of every batch size, on the model's device; typical batches for unread streamed data."""
    for fields in data.typical:
        fresh = tree_map(torch.clone, fields)
        changed = fresh if data.transform is None else transformed(data.transform, fresh)
        *inputs, target = tree_map(lambda leaf: leaf.to(model.device), [*changed])
        yield tuple(inputs), target
    for number in () if data.typical else sorted({0, data.train.plan.batches - 1}):
        batch = feed.gather(0, number)
        yield batch.inputs, batch.target
