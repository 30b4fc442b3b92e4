"""The small convolutional network of the well-known Hogwild example."""

import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """The network of `mnist_hogwild` in the repository pytorch/examples, layer for layer: 21,840 parameters for one
    channel and ten classes, so that results can be compared. One difference: it returns logits for `CrossEntropyLoss`,
    the example log-probabilities for `nll_loss`; the gradients are the same."""

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
