"""Evaluation of a slice of the validation data by one worker: the present model, in eval mode, batch by batch. For
metrics that are no sums, also the scores of all outputs, after the last slice."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hogwild.errors import BuildError
from hogwild.feeds.batch import Feed
from hogwild.metrics.loss_sums import Loss, parted
from hogwild.metrics.panel import Panel
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import batch_seed
from hogwild.training.loss_scaler import autocast, device_type_of, widened
from hogwild.training.model_steps import predictor
from hogwild.training.outputs import leaves_of

if TYPE_CHECKING:
    from hogwild.metrics.ranking import Ranking  # which imports numba

EPOCH = -1  # in the seeds of evaluation batches: differs from every training epoch


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, without gradients; restore modes and random state afterwards."""
    with _eval_mode(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


@contextlib.contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Scorer:
    """Scores training batches before they are learnt, with the model in eval mode; it keeps nothing of them."""

    def __init__(self, model: nn.Module, loss: Loss, panel: Panel, precision: str) -> None:
        self._model, self._loss, self._panel = model, loss, panel
        self._predict = predictor(model, loss)
        self._cast = autocast(precision, device_type_of([*model.parameters()]))
        self._words = 2 * len(panel.progressive)

    def words(self, inputs: tuple[Tensor, ...], target: Tensor) -> list[float]:
        """Return a total and a count for each of the panel's `progressive` metrics."""
        with _eval_mode(self._model), torch.no_grad(), self._cast:
            output, judged = self._predict(inputs, target)
            weight = parted(self._loss, inputs)[1]
            return [*self._panel.add(widened(output), judged, self._loss, *weight).words[: self._words]]


class Evaluator:
    """Owns the buffers of `feed`; the model is the process's own, and gets its former mode back. `outputs`, one tensor
    (N, …) or several, and `targets` (N, …) are shared, if a metric needs them, and so are the `weights` (N,) of samples
    that have any: rows are written by the owner of their slice. `ranking`: the metrics of recommenders, set later if
    there are any."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        feed: Feed,
        seed: int,
        panel: Panel,
        outputs: Any = None,
        targets: Tensor | None = None,
        precision: str = "fp32",
        seed_generator: Callable[[int], object] = torch.default_generator.manual_seed,
        weights: Tensor | None = None,
    ) -> None:
        self._model, self._loss = model, loss
        self._predict = predictor(model, loss)
        self._feed, self._seed, self._panel = feed, seed, panel
        self._outputs, self._targets, self._weights = outputs, targets, weights
        self._kept = leaves_of(outputs)
        self._cast = autocast(precision, device_type_of([*model.parameters()]))
        self._seed_generator = seed_generator  # of the generator that layers use
        self.ranking: Ranking | None = None

    def sums(self, batches: Sequence[int], beat: Callable[[], None], infers: bool = False) -> EvalSums:
        """Return the metrics' sums over these batches of the validation data, and keep the outputs if they are needed;
        `beat` is called after each batch. `infers`: use inference_mode, for a model that keeps no tensors for training
        (`inference_mode.py`)."""
        sums, positions = EvalSums(), []
        with _eval_mode(self._model):
            for number in batches:
                batch = self._feed.gather(0, number)  # outside inference_mode: its buffers are made on first use
                self._seed_generator(batch_seed(self._seed, EPOCH, batch.first_position))
                with torch.inference_mode() if infers else torch.no_grad(), self._cast:
                    output, target = self._predict(batch.inputs, batch.target)
                    output = widened(output)
                    if self._outputs is not None:
                        self._keep(output, batch.first_position, batch.size)
                    sums += self._panel.add(output, target, self._loss, *parted(self._loss, batch.inputs)[1])
                positions += [batch.first_position, batch.first_position + batch.size]
                beat()
        if self.ranking is not None and positions:
            sums += self._panel.add_ranked(self.ranking.sums(positions[0], positions[-1], beat))
        return sums

    def scores(self) -> EvalSums:
        """Return the metrics that are no sums, as words of a scoring item's row, after every slice is done."""
        assert self._outputs is not None and self._targets is not None
        return EvalSums.of(self._panel.score(self._outputs, self._targets, self._loss, self._weights))

    def _keep(self, output: Any, first: int, size: int) -> None:
        given = leaves_of(output)
        for name, kept in self._kept.items():
            rows, found = kept[first : first + size], given.get(name)
            if found is None or found.shape != rows.shape:  # copying would broadcast
                got = "is missing" if found is None else f"has shape {tuple(found.shape)}"
                raise BuildError(
                    f"the model's output{f' {name}' if name else ''} {got} for samples {first} to {first + size - 1} "
                    f"of data.val, but had {(size, *rows.shape[1:])} at first; metrics over all outputs need equal "
                    "shapes",
                    code="model/output-shape",
                )
            rows.copy_(found)
