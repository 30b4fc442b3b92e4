"""Multi-layer perceptrons."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class Mlp(nn.Module):
    """Fully connected layers with ReLU between them. `hidden` is the width of each hidden layer (one number: one layer;
    an empty list: none); `dropout` is the probability of dropping a hidden value during training."""

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
