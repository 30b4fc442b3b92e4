"""Models for tables: columns of numbers, and columns of categories."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hogwild.models.mlp import Mlp


class Tabular(nn.Module):
    """An `Mlp` over a table's numbers and, for each of its categorical columns, a learnt vector of `width` numbers.

    `categories` has one entry per categorical column: how many values it may have. The numbers are brought to mean 0
    and deviation 1 by what the batches themselves show (`BatchNorm1d`), because columns come in metres and in
    millions."""

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
        """numbers (B, features) float, categories (B, columns) int64 -> (B, outputs): numbers, or logits of classes. A
        table without numbers, or without categories, has only the other field, as `hogwild.data.Csv` gives it."""
        left = list(fields)
        parts = [self.scale(left.pop(0))] if self.scale is not None else []
        if len(self.columns):
            codes = left.pop(0)
            parts += [column(codes[:, place]) for place, column in enumerate(self.columns)]
        answer: Tensor = self.layers(torch.cat(parts, 1))
        return answer
