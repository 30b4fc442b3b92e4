"""Models that do once what a trainer's shared memory or its supervisor must not suffer from; on the counting job's data
(counting.py)."""

import torch
from counting import Counting, in_worker
from torch import Tensor


class Resizing(Counting):
    """Resizes its parameter in place, in every batch of a worker."""

    def forward(self, numbers: Tensor) -> Tensor:
        if in_worker():
            self.effects.weight.data.resize_(100_000_000)
        return super().forward(numbers)


class WithCuda(Counting):
    """A constructor after which torch believes that CUDA is in use in this process."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        torch.cuda._initialized = True


class Tiny(Counting):
    """Says in every batch of a worker what half of the smallest normal number is there."""

    def forward(self, numbers: Tensor) -> Tensor:
        if in_worker() and self.diary is not None:
            halved = torch.full((64,), torch.finfo(torch.float32).tiny) * 0.5
            (self.diary / f"tiny-{float(halved.max())}").touch()
        return super().forward(numbers)
