"""A data set that makes its samples when they are asked for: every digit a little elsewhere, with noise, another one
each time. Such a data set is streamed: loaders call `__getitem__` while workers train."""

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from hogwild.data import Mnist


class Shifted(Dataset):
    """(x (1, 28, 28) float32, y () int64) of MNIST, shifted by up to `pixels` each way, with normal `noise` added.
    torch's, Python's and numpy's generators are seeded for each batch: the same seed, the same pictures."""

    def __init__(self, split: str = "train", pixels: int = 2, noise: float = 0.1, root: str | None = None) -> None:
        self.x, self.y = Mnist(split, root).tensors
        self.pixels, self.noise = pixels, noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        most = self.pixels
        down, right = torch.randint(0, 2 * most + 1, (2,)).tolist()
        picture = pad(self.x[index], (most,) * 4, value=self.x[index, 0, 0, 0].item())
        picture = picture[:, down : down + 28, right : right + 28]
        return picture + self.noise * torch.randn(picture.shape), self.y[index]
