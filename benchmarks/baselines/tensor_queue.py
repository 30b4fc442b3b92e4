"""Batches from one process to another the ordinary way: fresh tensors through a `torch.multiprocessing.Queue`, as
torch's DataLoader sends them: rows are stacked straight into new shared memory, so that the queue copies nothing."""

import torch
from torch import Tensor
from torch.multiprocessing import Queue

Row = tuple[Tensor, int]


def stacked(records: list[Row]) -> tuple[Tensor, Tensor]:
    """((B, F) float32, (B,) int64), the first in new shared memory: what torch's default collation does in a worker."""
    first = records[0][0]
    count = len(records) * first.numel()
    storage = first._typed_storage()._new_shared(count, device=first.device)
    out = first.new(storage).resize_(len(records), *first.shape)
    return torch.stack([row for row, _ in records], out=out), torch.tensor([label for _, label in records])


def produce(queue: "Queue[tuple[Tensor, Tensor]]", records: list[Row], batches: int, done: "Queue[None]") -> None:
    """Puts so many, and stays until `done` says that all have been received: the memory is this process's."""
    for _ in range(batches):
        queue.put(stacked(records))
    done.get()
