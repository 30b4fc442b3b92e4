"""Data and a model for clusters, imported by every node: MNIST several times over, so that an epoch lasts long enough
to be measured within one, and a table of which a round changes few rows."""

from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hogwild.data import Mnist


class ManyDigits(TensorDataset):
    """x (times x 60,000, 1, 28, 28) float32, y (times x 60,000,) int64."""

    def __init__(self, times: int) -> None:
        x, y = Mnist(split="train").tensors
        super().__init__(x.repeat(times, 1, 1, 1), y.repeat(times))


class ManyRows(nn.Module):
    """A table of which each sample changes one row, which its pixels choose, and a layer behind it."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(rows, width, sparse=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.flatten(1).double().sum(1).abs() * 1e6).long() % self.table.num_embeddings
        return self.out(self.table(chosen))  # type: ignore[no-any-return]
