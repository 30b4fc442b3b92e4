"""Factorisation machine, and its compiled update."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import ADAGRAD, Numbers, rule_of, sums_of, why_not, words
from hogwild.models.row_checks import require_csr
from hogwild.models.sparse_linear import csr_views, hot_copies, kind_of, scores, unsuitable

SPREAD = 0.01  # initial standard deviation of the factors: at 0 they would have no gradient


class FactorizationMachine(nn.Module):
    """A linear model plus the interaction of every two features, as the product of their vectors of `factors` numbers
    (Rendle 2010). One output: a logit, a margin or a number, depending on the loss."""

    def __init__(self, features: int, factors: int = 8, sparse: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(features, 1))
        self.factors = nn.Parameter(torch.randn(features, factors) * SPREAD)
        self.sparse = sparse

    def forward(self, indices: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        """Return (B,) outputs of sparse rows in the form of `nn.EmbeddingBag`: indices (nnz,) and offsets (B,) of one
        integer type, values (nnz,) of the weights' type."""
        linear = scores(self.weight, self.bias, indices, offsets, values, self.sparse)
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])
        row = torch.repeat_interleave(torch.arange(len(offsets)), (ends - offsets).long())
        parts = F.embedding(indices, self.factors, sparse=self.sparse) * values[:, None]  # (nnz, factors)
        none = parts.new_zeros(len(offsets), parts.shape[1])
        sums, squares = none.index_add(0, row, parts), none.index_add(0, row, parts.square())
        return linear + 0.5 * (sums.square() - squares).sum(1)

    def see(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, or for features without a
        row."""
        for arrays in (train, val):
            if arrays is not None:
                require_csr(arrays, len(self.weight))

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad), or the reason for none."""
        kind = kind_of(loss, 1)
        if isinstance(kind, str):
            return kind
        problem = why_not(optimizer) or unsuitable(self)
        return problem or FactorizationMachineUpdate(kind, rule_of(optimizer))


class FactorizationMachineUpdate:
    """Fused update, sample by sample, as if the batch size were 1. Weight decay is lazy: only for the features in a
    sample.

    `hot` may name `weight` and `factors`, both or neither, and for Adagrad also `weight.sum` and `factors.sum`, all
    with the same rows. The bias is never hot: each call of `run` keeps its own copy."""

    implements: frozenset[str] = frozenset({"lr_schedule"})
    sides: tuple[Side, ...] = (Side("indices", ("weight", "factors")),)

    def __init__(self, kind: int, rule: str) -> None:
        self.name = f"factorisation machine, {rule}"
        self._kind, self._rule = kind, rule

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and the data. Raises ValueError if the arrays of a hot row are not all hot."""
        assert isinstance(model, FactorizationMachine)
        self._optimizer, self._params = optimizer, (model.weight, model.factors, model.bias)
        self._data = csr_views(arrays, np.float32)
        weight, factors, bias = map(words, self._params)
        sums, factor_sums, bias_sums = (sums_of(optimizer, param) for param in self._params)
        factor_sums = factor_sums if factor_sums.ndim == 2 else np.zeros((1, 1), np.float32)
        mine, my_sums = hot_copies(hot, "weight", self._rule, weight, sums)
        local, local_sums = hot_copies(hot, "factors", self._rule, factors[:0], factor_sums[:0])
        slot = np.zeros(0, np.uint32)
        if hot:
            if (
                "factors" not in hot
                or "weight" not in hot
                or not np.array_equal(hot["weight"].rows, hot["factors"].rows)
            ):
                raise ValueError("weight and factors do not have the same hot rows")
            slot = hot["factors"].slot.view(np.uint32)
            mine, my_sums = mine.reshape(-1), my_sums.reshape(-1)
        ones = [array.reshape(-1) for array in (weight, sums, mine, my_sums)]
        work = np.zeros(factors.shape[1], np.float32)
        self._views = (*ones, factors, factor_sums, slot, local, local_sums, bias, bias_sums, work)

    def run(self, chunk: Chunk) -> Tally:
        """Update sample by sample; each sees the updates of those before it."""
        from hogwild.kernels import factorization_machine

        kernels: Any = factorization_machine
        numbers = [Numbers.of(self._optimizer, param, chunk.rate) for param in self._params]
        flat = [word for each in numbers for word in (each.rate, each.decay, each.eps)]
        is_adagrad = self._rule == ADAGRAD
        loss, applied = kernels.factorization_machine(
            chunk.rows, *self._data, self._kind, *self._views, is_adagrad, *flat
        )
        return Tally(loss, applied, len(chunk.rows) - applied)
