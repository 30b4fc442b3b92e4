"""Models of clicks: rows that have one feature of each of some fields (`hogwild.data.Clicks`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.kernels.fused import FusedUpdate, Hot
from hogwild.kernels.optimizer_rules import FTRL, MOST
from hogwild.models.mlp import Mlp
from hogwild.models.sparse_linear import SPREAD, RowsUpdate, SparseRows, Table, bags, fused_by, scores


class _FieldRows(SparseRows):
    """Base class of both models."""

    in_runs = ("fields",)  # the numbers of a field are adjacent

    def __init__(self, features: int, fields: int, sparse: bool) -> None:
        super().__init__()
        self.fields, self.sparse = fields, sparse
        self.bias = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(features, 1))

    def on_data(self, train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray] | None) -> None:
        """Check the data's arrays; called before training. Raises ModelError for other data, for features without a
        row, and for rows that have not one feature of each field."""
        super().on_data(train, val)
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
    """Fused update of a FieldFactorizationMachine. Nothing is private to a worker."""

    family = "field_factorization_machine"
    label = "field-aware factorisation machine"
    params = ("weight", "factors", "bias")

    def _views_of(self, model: Any, tables: tuple[Table, ...], bias: Table, hot: Hot) -> tuple[Any, Any, Any]:
        return tables, bias, model.fields
