"""Outputs of a model as people read them: probabilities and predicted classes, where the job's loss says that they are.

CrossEntropyLoss, NLLLoss                  softmax; the likeliest class
BCEWithLogitsLoss, LogisticLoss            sigmoid; 1 above one half
BCELoss                                    probabilities already; 1 above one half
HingeLoss                                  the margin; 1 above zero
any other                                  the output"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.config.load import Job
from hogwild.data.input_rows import InputRows
from hogwild.errors import HogwildError, UsageError
from hogwild.losses import BprLoss, CandidateLoss, HingeLoss, NegativeSampling, WarpLoss
from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, as_module
from hogwild.user_code import resolve

RANKING = {
    BprLoss: "it ranks items: use recommend",
    WarpLoss: "it ranks items: use recommend",
    CandidateLoss: "it ranks the answers of a knowledge graph",
    NegativeSampling: "it learns vectors of words: use similar",
}
Columns = list[tuple[str, np.ndarray]]  # name, (n,) values


@dataclass(frozen=True, slots=True)
class Scores:
    """Rows of the answer: their `names` by column; `predicted` (n, …), if anything is; `values` (n, …), probabilities
    or outputs as `kind` says, with a label for each of a row, "" for the only one."""

    names: Mapping[str, Any]
    predicted: np.ndarray | None
    values: np.ndarray
    kind: str  # probability, output
    labels: Sequence[str]

    def columns(self) -> Columns:
        """Return flat columns, for tables, each of another name."""
        found: Columns = [(name, np.asarray(values)) for name, values in self.names.items()]
        if self.predicted is not None:
            predicted = self.predicted.reshape(len(self.predicted), -1)
            places = [""] if predicted.shape[1] == 1 else [str(place) for place in range(predicted.shape[1])]
            found += [(_joined("predicted", one), predicted[:, k]) for k, one in enumerate(places)]
        values = self.values.reshape(len(self.values), -1)
        return _distinct(found + [(_joined(self.kind, label), values[:, k]) for k, label in enumerate(self.labels)])

    def arrays(self, is_first: bool) -> Columns:
        """Return arrays, for .npz: `probabilities` or `outputs` keep their shape. The first ones have `classes`, the
        labels of the probabilities."""
        found: Columns = [(name, np.asarray(values)) for name, values in self.names.items()]
        if self.predicted is not None:
            found.append(("predicted", self.predicted))
        found.append(({"probability": "probabilities", "output": "outputs"}[self.kind], self.values))
        if is_first and self.kind == "probability" and len(self.labels) > 1:
            found.append(("classes", np.asarray(self.labels)))
        return _distinct(found)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of outputs. `loss`: its class; None for one that says nothing, or for raw outputs. `classes`: their
    names by number, if known."""

    loss: type | None
    classes: Sequence[Any] | None = None

    @classmethod
    def of(cls, job: Job, names: Mapping[str, Any], *, raw: bool = False) -> "Meaning":
        """Return the meaning in a job. Raises UsageError for a loss that has no outputs for a row."""
        found: Any = None
        with suppress(HogwildError):  # the module of a user's loss may be gone: it says nothing
            found = resolve(job.loss.class_path)
        kind = found if isinstance(found, type) else type(as_module(found))
        for loss, why in RANKING.items():
            if issubclass(kind, loss):
                raise UsageError(
                    f"the model was trained with {job.loss.class_path} and predicts nothing for a row: {why}",
                    code="usage/no-predictions",
                )
        return cls(None if raw or not issubclass(kind, (*BY_CLASS, *BY_SIGN)) else kind, names.get("classes"))

    def probabilities(self, output: Tensor) -> Tensor:
        """Return probabilities (n, …) for outputs (n, …), which are the answer where there are none."""
        if self._is_by_class(output):
            return output.softmax(1)
        if self.loss is None or issubclass(self.loss, (*BY_CLASS, nn.BCELoss, HingeLoss)):
            return output
        return output.sigmoid()

    def scores(self, block: InputRows, output: Tensor) -> Scores:
        """Return the answer for a block of rows."""
        values = self.probabilities(output)
        width = values[0].numel()
        labels = [""] if width == 1 else [str(place) for place in range(width)]
        predicted: np.ndarray | None = None
        kind = "output"
        if self._is_by_class(output):
            kind, predicted = "probability", output.argmax(1).numpy()
            if output.dim() == 2:
                labels = [str(name) for name in self._named(np.arange(width))]
                predicted = self._named(predicted)
        elif self.loss is not None and issubclass(self.loss, BY_SIGN):
            kind = "output" if issubclass(self.loss, HingeLoss) else "probability"
            is_yes = values > (0.0 if issubclass(self.loss, HingeLoss) else 0.5)
            predicted = is_yes.to(torch.int64).numpy()
            if width == 1 and self.classes is not None and len(self.classes) == 2:
                predicted = self._named(predicted)
        return Scores(block.names, predicted, _array(values), kind, labels)

    def _is_by_class(self, output: Tensor) -> bool:
        return self.loss is not None and issubclass(self.loss, BY_CLASS) and output.dim() > 1

    def _named(self, numbers: np.ndarray) -> np.ndarray:
        if self.classes is None or (numbers.size and numbers.max() >= len(self.classes)):
            return numbers
        named: np.ndarray = np.asarray(self.classes)[numbers]
        return named


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return array


def _distinct(columns: Columns) -> Columns:
    """Return the columns, with `_` behind a name that one before has: ids keep the name that their file gives them."""
    found: dict[str, np.ndarray] = {}
    for name, values in columns:
        while name in found:
            name += "_"
        found[name] = values
    return [*found.items()]


def _joined(kind: str, label: str) -> str:
    return f"{kind}_{label}" if label else kind
