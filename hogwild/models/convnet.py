"""A convolutional network for pictures of any size."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

GROUPS = 8  # of channels that are normalised together


class ConvNet(nn.Module):
    """Per entry of `widths` one 3x3 convolution to so many channels (a multiple of 8), group norm (Wu & He 2018: it
    keeps no running averages, about which workers could disagree), ReLU and halving by max-pooling; then the mean over
    what is left of the picture, and one linear layer. Each side must be at least 2^len(widths) pixels."""

    def __init__(self, classes: int, channels: int = 3, widths: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.GroupNorm(GROUPS, after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            for before, after in pairwise([channels, *widths])
        ]
        self.features = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, channels, H, W) float -> logits (B, classes)."""
        logits: Tensor = self.classes(self.features(x))
        return logits
