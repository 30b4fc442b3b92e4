"""A model under torch.compile, called for the first time: everything that the job will need is compiled before the
first batch is leased, by one worker, and nothing else is changed by it.

    the first batch, the last (it may be smaller): forward and backward        the same of the validation data: forward
    afterwards: no gradient, the buffers and the random state as before"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hogwild.compiled_model import ModelCache, refusing
from hogwild.scoreboard import Row
from workers.compiling import MODEL, make_all_ready

if TYPE_CHECKING:
    from hogwild.evaluation import Evaluator
    from hogwild.feeds import Feed
    from hogwild.updates import AutogradUpdate
    from hogwild.worker_model import WorkerModel
    from workers.kit import Kit


def make_model_ready(
    kit: "Kit",
    model: "WorkerModel",
    update: "AutogradUpdate",
    feed: "Feed",
    evaluator: "Evaluator | None",
    row: Row,
    lifeline: int | None,
) -> str:
    """Says how the compiled model came, and how long it took. Raises ModelError, ParentGone."""

    def run() -> None:
        model.keep_buffers()
        try:
            for number in sorted({0, kit.train.plan.batches - 1}):
                batch = feed.gather(0, number)
                update.backward(batch.inputs, batch.target)
                row.beat()
            if evaluator is not None and kit.val is not None:
                evaluator.sums(sorted({0, kit.val.plan.batches - 1}), row.beat)
        finally:
            update.discard()
            model.restore_buffers()

    return make_all_ready(
        "the compiled model", ModelCache.of(kit.compile_key), undisturbed(refusing(run)), row, lifeline, MODEL
    )


def undisturbed(run: Callable[[], None]) -> Callable[[], None]:
    """`run`, after which the random state is as before."""

    def quietly() -> None:
        with torch.random.fork_rng(devices=[]):
            run()

    return quietly
