"""A model of any size whose updates are small: what is large is the checkpoint."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH = 64


class Large(nn.Module):
    """An embedding of `parameters` numbers, all zero; a batch touches its own rows only."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        weight = torch.zeros(parameters // WIDTH, WIDTH)
        self.rows = nn.Embedding(*weight.shape, sparse=True, _weight=weight)

    def forward(self, numbers: Tensor) -> Tensor:
        """numbers (B,) int64 -> their rows (B, WIDTH)."""
        return self.rows(numbers)


class Rows(TensorDataset):
    def __init__(self, parameters: int, samples: int = 4096) -> None:
        numbers = torch.randint(parameters // WIDTH, (samples,))
        super().__init__(numbers, numbers)


class Mean(nn.Module):
    def forward(self, rows: Tensor, numbers: Tensor) -> Tensor:
        return rows.mean()
