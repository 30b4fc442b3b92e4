"""Make the kernels or the model of a job callable in a worker: compiled by one process, for all.

    there already     ──► loaded by the fork server: nothing to do
    cached, complete? ──► load
    else              ──► claim it (`artifact_cache.py`), compile, cache; while another process has the claim, beat

Nobody waits on a lock: a claim is asked for again and again, and ends with its process. One that dies while compiling
leaves a folder under a temporary name, which nobody reads.

A model under torch.compile is compiled by its first calls. One worker makes all that the job needs before the first
batch is leased, and changes nothing else:

    the first and the last batch (it may be smaller): forward and backward; of the validation data: forward
    streamed data, of which nothing is read yet: batches of the same sizes     (`Streamed.typical`)
    parameters frozen until an update: all of the above before each thaw, and after it
    afterwards: no gradient, the buffers and the random state as before"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hogwild import host
from hogwild.feeds.transform import transformed
from hogwild.shared_memory.scoreboard import Phase, Row
from hogwild.storage.artifact_cache import CompiledCache, made_ready
from hogwild.training.compiled_model import ModelCache, refusing
from hogwild.workers.messages import ParentGone

if TYPE_CHECKING:
    from hogwild.feeds.batch import Feed
    from hogwild.kernels.signatures import Kernels
    from hogwild.parameters.worker_model import WorkerModel
    from hogwild.training.autograd_update import AutogradUpdate
    from hogwild.training.evaluator import Evaluator
    from hogwild.workers.child.spec import DataSide, WorkerSpec

Parts = Sequence[tuple[CompiledCache, Callable[[], object]]]  # caches, each with what calls its content
LOOK_MS = 20  # between two looks at the cache


def make_ready(
    name: str, run: Callable[[], object], kernels: "Sequence[Kernels]", row: Row, lifeline: int | None
) -> str:
    """Make every kernel of `name`, an update or a metric, callable: those of ours, or without any all that `run` calls,
    on empty data. Return a log message: there already, loaded or compiled, and the time. `lifeline`: None in the
    supervisor itself (`procs: 0`). Raises ParentGone."""
    from hogwild.kernels.compiling import compile_all, is_ready  # numba takes half a second
    from hogwild.kernels.kernel_cache import KernelCache

    parts: Parts = [(KernelCache.of(one), partial(compile_all, one)) for one in kernels if not is_ready(one)]
    if not kernels:
        parts = [(KernelCache.of(name), run)]
    return make_all_ready(f"kernels of {name}", parts, row, lifeline)


def make_all_ready(what: str, parts: Parts, row: Row, lifeline: int | None) -> str:
    """As `make_ready`, for any caches."""

    def pause() -> None:
        if host.wait_readable([] if lifeline is None else [lifeline], LOOK_MS):
            raise ParentGone
        row.beat()

    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = dict.fromkeys(made_ready(cache, run, pause) for cache, run in parts) or ("there already",)
    row.enter(Phase.BOOTING)
    return f"{what}: {' and '.join(how)} in {time.monotonic() - began_s:.1f} s"


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
