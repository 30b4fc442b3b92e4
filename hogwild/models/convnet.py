"""Convolutional networks for images."""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 8  # groups of channels that are normalised together


class ConvNet(nn.Module):
    """Blocks of a 3x3 convolution, group norm, ReLU and 2x2 max-pooling; then the mean over the remaining image, and
    one linear layer. Group norm (Wu & He 2018) keeps no running averages, which could differ between workers.

    Arguments:
        classes: outputs.
        channels: of the images.
        widths: channels of each block, multiples of 8. Each side of an image has at least 2^len(widths) pixels."""

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


class LeNet(nn.Module):
    """The network of `mnist_hogwild` in the repository pytorch/examples, layer for layer: 21,840 parameters for one
    channel and ten classes, so that results can be compared. One difference: it returns logits for `CrossEntropyLoss`,
    the example log-probabilities for `nll_loss`; the gradients are the same.

    Arguments:
        classes: outputs.
        channels: of the images, which have 28x28 pixels."""

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.drop2 = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.drop = nn.Dropout()
        self.fc2 = nn.Linear(50, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of x (B, channels, 28, 28) float."""
        # Pooling comes before relu: the values are the same (both are monotone), with a quarter of the work for relu.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (B, 10, 12, 12)
        x = F.relu(F.max_pool2d(self.drop2(self.conv2(x)), 2))  # (B, 20, 4, 4)
        x = self.drop(F.relu(self.fc1(x.flatten(1))))  # (B, 50)
        logits: Tensor = self.fc2(x)
        return logits
