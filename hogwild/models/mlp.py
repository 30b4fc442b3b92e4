"""Fully connected networks: linear, multi-layer, and over the columns of a table."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer: with `CrossEntropyLoss` this is multinomial logistic regression, a convex problem, so
    every training run can be compared with a known optimum.

    Arguments:
        features: numbers per sample, after flattening.
        classes: outputs."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, ...) float, with `features` values per sample after flattening."""
        logits: Tensor = self.linear(x.flatten(1))
        return logits


class Mlp(nn.Module):
    """Fully connected layers with ReLU between them.

    Arguments:
        features: numbers per sample, after flattening.
        hidden: width of each hidden layer (one number: one layer; an empty list: none).
        classes: outputs; 1 for a regression of one number.
        dropout: probability of dropping a hidden value during training."""

    def __init__(self, features: int, hidden: Sequence[int] | int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [features, *([hidden] if isinstance(hidden, int) else hidden)]
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, ...) float, with `features` values per sample after flattening."""
        logits: Tensor = self.layers(x.flatten(1))
        return logits


class Tabular(nn.Module):
    """An `Mlp` over a table's numbers and, for each of its categorical columns, a learnt vector. The numbers are
    normalised to mean 0 and deviation 1 with batch statistics (`BatchNorm1d`), because columns have very different
    scales.

    Arguments:
        features: columns of numbers.
        outputs: targets of a regression, or classes.
        categories: for each categorical column its number of values.
        hidden: width of each hidden layer.
        width: numbers of the learnt vector of a category.
        dropout: probability of dropping a hidden value during training."""

    side_by_side, in_runs = ("features", "categories"), ("categories",)  # inputs of the first layer

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
