"""The batch as a worker gets it, and the protocol of the feeds that gather it into reused buffers."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """A gathered batch. The tensors are views of the feed's buffers, valid until the next `gather`."""

    inputs: tuple[Tensor, ...]
    target: Tensor
    first_position: int
    size: int


class Feed(Protocol):
    """Turns batch numbers into batches in reused buffers."""

    def gather(self, epoch: int, batch: int) -> Batch: ...
