"""A slice of the validation data, evaluated by one worker: the model as it is now, in eval mode, batch by batch. And,
where a metric is no sum, the scores of all outputs, once every slice is done."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from hogwild.errors import BuildError
from hogwild.feeds.batch import Feed
from hogwild.metrics.loss_sums import Loss
from hogwild.metrics.panel import Panel
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.seeds import batch_seed
from hogwild.training.autocast import autocast, device_type_of, widened
from hogwild.training.model_steps import predictor

EPOCH = -1  # for the seeds of an evaluation's batches: no epoch of training has them


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model is in eval mode meanwhile, makes no gradients, and what it draws leaves the random state as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class Evaluator:
    """Owns the buffers of `feed`; the model is the process's own, and is in its former mode again afterwards. `outputs`
    (N, …) and `targets` (N, …) are shared, where a metric needs them: rows are written by whoever holds their slice."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        feed: Feed,
        seed: int,
        panel: Panel,
        outputs: Tensor | None = None,
        targets: Tensor | None = None,
        precision: str = "fp32",
        seed_generator: Callable[[int], object] = torch.default_generator.manual_seed,
    ) -> None:
        self._model, self._loss = model, loss
        self._predict = predictor(model, loss)
        self._feed = feed
        self._seed = seed
        self._panel = panel
        self._outputs, self._targets = outputs, targets
        self._cast = autocast(precision, device_type_of([*model.parameters()]))
        self._seed_generator = seed_generator  # of what layers draw from

    def sums(self, batches: Iterable[int], beat: Callable[[], None], infers: bool = False) -> EvalSums:
        """The metrics' sums over these batches of the validation data, whose outputs are kept if they are needed;
        `beat` is called after each. `infers`: under inference_mode, for a model that keeps nothing of it for training
        (`inference_mode.py`)."""
        training = [part for part in self._model.modules() if part.training]
        self._model.eval()
        sums = EvalSums()
        try:
            for number in batches:
                batch = self._feed.gather(0, number)  # outside: its buffers are made when they are first needed
                self._seed_generator(batch_seed(self._seed, EPOCH, batch.first_position))
                with torch.inference_mode() if infers else torch.no_grad(), self._cast:
                    output, target = self._predict(batch.inputs, batch.target)
                    output = widened(output)
                    if self._outputs is not None:
                        self._keep(output, batch.first_position, batch.size)
                    sums += self._panel.add(output, target, self._loss)
                beat()
        finally:
            for part in training:
                part.training = True
        return sums

    def scores(self) -> EvalSums:
        """The values of the metrics that are no sums, as the words of a scoring item's row. Every slice is done."""
        assert self._outputs is not None and self._targets is not None
        return EvalSums.of(self._panel.score(self._outputs, self._targets, self._loss))

    def _keep(self, output: Tensor, first: int, size: int) -> None:
        assert self._outputs is not None
        rows = self._outputs[first : first + size]
        if output.shape != rows.shape:  # copying would broadcast
            raise BuildError(
                f"the model's output has shape {tuple(output.shape)} for samples {first} to {first + size - 1} of "
                f"data.val, and had {(size, *rows.shape[1:])} at first; metrics over all outputs need them alike",
                code="model/output-shape",
            )
        rows.copy_(output)
