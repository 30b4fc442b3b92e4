"""A small network with BatchNorm over the digits' 64 pixels: it cannot train on a batch of one."""

from torch import Tensor, nn


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, …) of 64 numbers -> (B, 10) logits."""
        return self.layers(pixels.flatten(1))
