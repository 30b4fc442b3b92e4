"""A convolutional network for images of any size."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

GROUPS = 8  # groups of channels that are normalised together


class ConvNet(nn.Module):
    """For each entry of `widths`: a 3x3 convolution to that many channels (a multiple of 8), group norm, ReLU and 2x2
    max-pooling; then the mean over the remaining image, and one linear layer. Group norm (Wu & He 2018) keeps no
    running averages, which could differ between workers. Each side must be at least 2^len(widths) pixels."""

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
        """Return logits (B, classes) of x (B, channels, H, W) float."""
        logits: Tensor = self.classes(self.features(x))
        return logits
