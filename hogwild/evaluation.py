"""A slice of the validation data, evaluated by one worker: the model as it is now, in eval mode, batch by batch."""

from collections.abc import Callable, Iterable

import torch

from hogwild.batches import batch_seed
from hogwild.eval_sums import EvalSums
from hogwild.feeds import Feed
from hogwild.metrics import evaluate_batch
from hogwild.worker_model import WorkerModel

EPOCH = -1  # for the seeds of an evaluation's batches: no epoch of training has them


class Evaluator:
    """Owns the buffers of `feed`; the model is the worker's own, and is in its former mode again afterwards."""

    def __init__(self, worker_model: WorkerModel, feed: Feed, seed: int) -> None:
        self._model, self._loss = worker_model.model, worker_model.loss
        self._feed = feed
        self._seed = seed

    def sums(self, batches: Iterable[int], beat: Callable[[], None]) -> EvalSums:
        """The metrics' sums over these batches of the validation data; `beat` is called after each."""
        training = [part for part in self._model.modules() if part.training]
        self._model.eval()
        sums = EvalSums()
        try:
            with torch.no_grad():  # not inference_mode: what a model keeps from here must do for training too
                for number in batches:
                    batch = self._feed.gather(0, number)
                    torch.default_generator.manual_seed(batch_seed(self._seed, EPOCH, batch.first_position))
                    sums += evaluate_batch(self._model(*batch.inputs), batch.target, self._loss)
                    beat()
        finally:
            for part in training:
                part.training = True
        return sums
