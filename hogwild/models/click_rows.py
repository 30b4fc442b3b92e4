"""Models of clicks: rows that have one feature of each of some fields (`hogwild.data.Clicks`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.kernels import signatures
from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally
from hogwild.kernels.optimizer_rules import FTRL, MOST, step_numbers
from hogwild.models.mlp import Mlp
from hogwild.models.sparse_linear import (
    PLAIN,
    SPREAD,
    RowsUpdate,
    SampleCounts,
    SparseRows,
    bags,
    csr_views,
    fused_by,
    scores,
    state_views,
)


class _FieldRows(SparseRows):
    """Base class of both models."""

    in_runs = ("fields",)  # the numbers of a field are adjacent

    def __init__(self, features: int, fields: int, sparse: bool) -> None:
        super().__init__()
        self.fields, self.sparse = fields, sparse
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(features, 1))

    def see(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, for features without a
        row, and for rows that have not one feature of each field."""
        super().see(train, val)
        for arrays in (train, val):
            if arrays is not None and not (np.diff(arrays["indptr"]) == self.fields).all():
                lengths = np.diff(arrays["indptr"])
                raise ModelError(
                    f"this model needs rows with one feature of each of {self.fields} fields (hogwild.data.Clicks); "
                    f"the data has rows with {lengths.min()} to {lengths.max()}",
                    code="model/unlike-data",
                )

    def _linear(self, indices: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        return scores(self.weight, self.bias, indices, offsets, values, self.sparse)

    def _vectors(self, factors: Tensor, indices: Tensor, values: Tensor) -> Tensor:
        """Return (B, fields, width): the rows of `factors`, times the values."""
        found = F.embedding(indices, factors, sparse=self.sparse) * values[:, None]
        return found.reshape(-1, self.fields, factors.shape[1])


class FieldFactorizationMachine(_FieldRows):
    """A linear model plus the interaction of every two features, as the product of two vectors: a feature has another
    vector for each field that it meets (field-aware factorisation machine, Juan et al. 2016). One output: a logit, a
    margin or a number, depending on the loss.

    Arguments:
        features: different features.
        fields: features of a row, one of each field.
        factors: numbers of each vector; a feature has `fields` vectors.
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(self, features: int, fields: int, factors: int = 4, sparse: bool = True) -> None:
        super().__init__(features, fields, sparse)
        # As in LIBFFM, from 0 on: Adagrad's first steps are as large as its rate whatever the gradient.
        self.factors = nn.Parameter(torch.rand(features, fields * factors) / factors**0.5)

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them, with `fields` features each."""
        indices, offsets, values = bags(indices, offsets, values)
        met = self._vectors(self.factors, indices, values).unflatten(2, (self.fields, -1))  # (B, own, other field, K)
        products = (met * met.transpose(1, 2)).sum(3)
        output: Tensor = self._linear(indices, offsets, values) + products.triu(1).sum((1, 2))
        return output

    def fused(self, loss: Any, optimizer: torch.optim.Optimizer) -> FusedUpdate | str:
        """Return the compiled update (logistic, hinge, squared loss; SGD, Adagrad, FTRL), or the reason for none."""
        return fused_by(FieldMachineUpdate, self, loss, optimizer, (*MOST, FTRL))


class DeepFm(_FieldRows):
    """A factorisation machine and, over the vectors of a row's features side by side, a network of fully connected
    layers; their outputs are added (Guo et al., "DeepFM", 2017). One output: a logit, a margin or a number, depending
    on the loss.

    Arguments:
        features: different features.
        fields: features of a row, one of each field.
        factors: numbers of a feature's vector.
        hidden: width of each hidden layer.
        dropout: probability of dropping a hidden value during training.
        sparse: gradients of the features hold only the touched rows; false for optimizers that need dense ones."""

    def __init__(
        self,
        features: int,
        fields: int,
        factors: int = 8,
        hidden: Sequence[int] = (64, 64),
        dropout: float = 0.0,
        sparse: bool = True,
    ) -> None:
        super().__init__(features, fields, sparse)
        self.factors = nn.Parameter(torch.randn(features, factors) * SPREAD)
        self.layers = Mlp(fields * factors, hidden, 1, dropout)

    def forward(self, indices: Tensor, offsets: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Return (B,) outputs of sparse rows as `bags` takes them, with `fields` features each."""
        indices, offsets, values = bags(indices, offsets, values)
        vectors = self._vectors(self.factors, indices, values)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        deep: Tensor = self.layers(vectors)
        return self._linear(indices, offsets, values) + pairs + deep.squeeze(1)


class FieldMachineUpdate(RowsUpdate):
    """Fused update, sample by sample, as if the batch size were 1. Weight decay is lazy: only for the numbers that a
    sample uses. Nothing is private to a worker."""

    implements: frozenset[str] = frozenset({"lr_schedule"})
    sides: tuple[Side, ...] = ()

    def __init__(self, kind: int, rule: str, counts: SampleCounts = PLAIN) -> None:
        self.name = f"field-aware factorisation machine, {rule}"
        self.kernels = signatures.field_factorization_machine(rule)
        self._kind, self._rule, self._counts = kind, rule, counts

    def bind(self, model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, hot: Hot) -> None:
        """Bind the model, the optimizer and the data."""
        assert isinstance(model, FieldFactorizationMachine)
        self._optimizer, self._params = optimizer, (model.weight, model.factors, model.bias)
        self._data, self._fields = csr_views(arrays, np.float32, self._counts), model.fields
        self._views = state_views(optimizer, self._params)

    def run(self, chunk: Chunk) -> Tally:
        """Update sample by sample; each sees the updates of those before it."""
        from hogwild.kernels.field_factorization_machine import field_factorization_machine

        numbers = step_numbers(self._optimizer, self._params, chunk.rate)
        data = (*self._data, self._kind, self._fields)
        rule = signatures.RULES[self._rule], *numbers
        loss, applied = field_factorization_machine(chunk.rows, *data, *self._views, *rule)
        return Tally(loss, applied, len(chunk.rows) - applied)
