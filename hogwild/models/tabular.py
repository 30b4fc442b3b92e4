"""Models for tables with columns of numbers and columns of categories."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hogwild.models.mlp import Mlp


class Tabular(nn.Module):
    """An `Mlp` over a table's numbers and, for each of its categorical columns, a learnt vector of `width` numbers.

    `categories` has one entry per categorical column: its number of values. The numbers are normalised to mean 0 and
    deviation 1 with batch statistics (`BatchNorm1d`), because columns have very different scales."""

    def __init__(
        self,
        features: int,
        outputs: int = 1,
        categories: Sequence[int] = (),
        hidden: Sequence[int] = (64, 64),
        width: int = 8,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(features, affine=False) if features else None
        self.columns = nn.ModuleList(nn.Embedding(values, width) for values in categories)
        self.layers = Mlp(features + width * len(categories), hidden, outputs, dropout)

    def forward(self, *fields: Tensor) -> Tensor:
        """Return (B, outputs), numbers or logits, for numbers (B, features) float and categories (B, columns) int64. A
        table with only numbers, or only categories, has only that field, as from `hogwild.data.Csv`."""
        left = list(fields)
        parts = [self.scale(left.pop(0))] if self.scale is not None else []
        if len(self.columns):
            codes = left.pop(0)
            parts += [column(codes[:, place]) for place, column in enumerate(self.columns)]
        answer: Tensor = self.layers(torch.cat(parts, 1))
        return answer
