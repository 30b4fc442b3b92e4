"""A model, a loss, a data set and a metric of one's own: plain torch, which knows nothing of hogwild. The job file
beside it names the four; replace what is in them and keep their contracts.

Here the next value of a noisy signal is forecast from the ones before it. The noise is known, so the best possible
error is, too: nobody can be closer than NOISE on average.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WINDOW = 32  # values that are seen
NOISE = 0.1  # deviation of what cannot be foretold


class Forecaster(nn.Module):
    """A model: any nn.Module. Called with the inputs of a batch."""

    def __init__(self, channels: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, channels, 5, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * WINDOW, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, seen: Tensor) -> Tensor:
        """seen (B, WINDOW) float -> the next value, (B,)."""
        return self.layers(seen.unsqueeze(1)).squeeze(1)


class LogCosh(nn.Module):
    """A loss: called with the model's output and the target of a batch, answers one number, a mean over the batch. This
    one is half the squared error near zero and the absolute error far away."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        error = output - target
        return (error + nn.functional.softplus(-2 * error) - torch.tensor(2.0).log()).mean()


class Signal(Dataset):
    """A data set: anything with a length and samples (input, ..., target). This one is two waves and noise."""

    def __init__(self, samples: int = 4_000, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(samples + WINDOW)
        waves = torch.sin(time * 0.31) + 0.5 * torch.sin(time * 0.83)
        self.values = waves + NOISE * torch.randn(len(time), generator=generator)

    def __len__(self) -> int:
        return len(self.values) - WINDOW

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """seen (WINDOW,) float32, next () float32."""
        return self.values[index : index + WINDOW], self.values[index + WINDOW]


def within_two_deviations(outputs: Tensor, targets: Tensor) -> float:
    """A metric: called once with the outputs (N,) and targets (N,) of all validation samples, answers one number. This
    one is the share of forecasts that are as close as the noise allows: 95 % if it were the noise alone."""
    return float(((outputs - targets).abs() < 2 * NOISE).float().mean())
