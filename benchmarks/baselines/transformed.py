"""MNIST as it is read record by record, with transforms in Python each time anew: into a tensor and normalised, as the
well-known example does it; and, with `jitter`, shifted by up to two pixels and with noise added between the two, which
takes three times as long. The same class feeds our streamed job and the baseline with a DataLoader."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.baselines.well_known import normalize, to_tensor
from hogwild.data import Mnist

MOST_SHIFT = 2  # pixels
NOISE = 0.05  # standard deviation, of pixels in [0, 1]


class Transformed(Dataset):
    """Record i is ((1, 28, 28) float32, the label). `records`: only the first so many. Jitter draws from torch's
    generator."""

    def __init__(self, split: str = "train", records: int | None = None, jitter: bool = False) -> None:
        x, y = Mnist(split=split, normalize=False).tensors
        self.images = (x[:records, 0] * 255).round_().to(torch.uint8)  # (N, 28, 28)
        self.labels, self.jitter = y[:records], jitter

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = to_tensor(self.images[index].numpy())
        if self.jitter:
            image = shift(image)
            image = (image + NOISE * torch.randn_like(image)).clamp_(0.0, 1.0)
        return normalize(image), int(self.labels[index])


def shift(image: Tensor) -> Tensor:
    """(C, H, W), moved by up to MOST_SHIFT pixels each way; zeros come in from outside."""
    down, right = torch.randint(0, 2 * MOST_SHIFT + 1, (2,)).tolist()
    padded = torch.nn.functional.pad(image, (MOST_SHIFT,) * 4)
    return padded[:, down : down + image.shape[1], right : right + image.shape[2]]
