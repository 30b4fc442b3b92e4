"""The fused update of skip-gram. numba is imported when one is made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hogwild.kernels.fused import Chunk, Side, Tally
from hogwild.models.skipgram import FLATTENED, NegativeSampling, SkipGram, keep_probabilities

if TYPE_CHECKING:
    from hogwild.kernels.hot import HotRows

PAIRED = 6  # the kernel takes its output rows three and two at a time


def offer(model: SkipGram, loss: Any, optimizer: torch.optim.Optimizer) -> "SkipGramUpdate | str":
    """The update, or why there is none, in words for the log."""
    if type(loss) is not NegativeSampling:
        return f"its fused update is for hogwild.models.skipgram.NegativeSampling, not for {type(loss).__qualname__}"
    if type(optimizer) is not torch.optim.SGD:
        return f"its fused update knows SGD, not {type(optimizer).__qualname__}"
    for group in optimizer.param_groups:
        for option in ("momentum", "dampening", "weight_decay", "maximize"):
            if group[option]:
                return f"its fused update does not know {option} of SGD"
    for name, param in model.named_parameters():
        if param.dtype != torch.float32:
            return f"its fused update is for float32, and {name} is {param.dtype}"
    return SkipGramUpdate()


class SkipGramUpdate:
    """As kernels.fused.FusedUpdate says. No rows are hot: frequent words are dropped by sub-sampling."""

    name = "skip-gram, SGD"
    implements = frozenset({"lr_schedule", "freeze"})
    sides: tuple[Side, ...] = ()

    def __init__(self) -> None:
        from hogwild.kernels import skipgram

        self._kernel: Any = skipgram.sgd
        self._data: tuple[Any, ...] = ()
        self._scratch: tuple[np.ndarray, ...] = ()
        self._rates = 0.0, 0.0

    def bind(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        arrays: Mapping[str, np.ndarray],
        hot: "Mapping[str, HotRows]",
    ) -> None:
        """Views of the vectors and of the text; tables of what is drawn, and room for one word's contexts."""
        assert isinstance(model, SkipGram)
        keep = keep_probabilities(torch.from_numpy(np.array(arrays["counts"])), model.sample).numpy()
        chance, other = alias_tables(arrays["counts"].astype(np.float64) ** FLATTENED)
        weights = (table.weight.detach().numpy() for table in (model.input, model.output))
        sizes = np.int64(model.window), np.int64(model.context), bool(model.shared)
        self._data = (arrays["tokens"], arrays["starts"], keep, chance, other, *weights, *sizes)
        self._scratch = scratch(model.input.embedding_dim, model.window, model.negatives)
        rates = {param: float(group["lr"]) for group in optimizer.param_groups for param in group["params"]}
        parts = (model.input.weight, model.output.weight)
        self._rates = tuple(rates.get(part, 0.0) if part.requires_grad else 0.0 for part in parts)  # type: ignore[assignment]

    def run(self, chunk: Chunk) -> Tally:
        """The words at the places `chunk.rows`, each with the words around it."""
        rates = (np.float32(rate * chunk.rate) for rate in self._rates)
        loss, applied, not_finite = self._kernel(chunk.rows, *self._data, np.uint64(chunk.seed), *rates, *self._scratch)
        return Tally(float(loss), int(applied), int(not_finite))


def alias_tables(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(chance (V,) float32, other (V,) int32): a word v is drawn as a place u of V, all alike; v = u with chance[u],
    else other[u]. Walker 1977; built in one pass (Vose 1991)."""
    count = len(weights)
    left = np.asarray(weights, np.float64) * (count / weights.sum())
    chance, other = np.ones(count), np.arange(count, dtype=np.int32)
    poor, rich = np.flatnonzero(left < 1).tolist(), np.flatnonzero(left >= 1).tolist()
    while poor and rich:
        needy, giver = poor.pop(), rich[-1]
        chance[needy], other[needy] = left[needy], giver
        left[giver] -= 1 - left[needy]
        if left[giver] < 1:
            poor.append(rich.pop())
    return chance.astype(np.float32), other


def scratch(dim: int, window: int, negatives: int) -> tuple[np.ndarray, ...]:
    """The kernel's arrays: contexts, targets, signs, x, y, dx, dy, z, likely. A context more than there can be, because
    they are taken two at a time; rows of y that are never written stay 0."""
    from hogwild.kernels.lanes import LANES, padded, zeros_on_lines

    contexts, targets, width = 2 * window + 1, 1 + negatives, padded(dim)
    filled = -(-targets // PAIRED) * PAIRED
    columns = padded(filled)
    assert columns % LANES == 0
    return (
        np.zeros(contexts, np.int32),
        np.zeros(targets, np.int32),
        zeros_on_lines(1, columns),
        *(zeros_on_lines(rows, width) for rows in (contexts, filled, contexts, filled)),
        zeros_on_lines(contexts, columns),
        zeros_on_lines(1, columns),
    )
