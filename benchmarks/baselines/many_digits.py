"""MNIST several times over: an epoch that lasts long enough for a cluster to be measured within one. Imported by every
node as a job's data (`benchmarks.baselines.many_digits.ManyDigits`)."""

from torch.utils.data import TensorDataset

from hogwild.data import Mnist


class ManyDigits(TensorDataset):
    """x (times x 60,000, 1, 28, 28) float32, y (times x 60,000,) int64."""

    def __init__(self, times: int) -> None:
        x, y = Mnist(split="train").tensors
        super().__init__(x.repeat(times, 1, 1, 1), y.repeat(times))
