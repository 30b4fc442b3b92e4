"""The limit: N processes that share nothing. Each has its own model and optimizer and trains as fast as torch lets
it; only the data lies in shared memory, read by all. No supervisor, no queue, no shared parameter: what is left
between this and a Hogwild job is the price of everything we do. With one process it is *the bare loop*.

Float data, `index_select` into a reused buffer, channels_last input and weights where there is a Conv2d, fused SGD,
one thread."""

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import torch.multiprocessing
from torch import Tensor, nn

from hogwild.models import LeNet

WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Settings:
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.5
    updates: int = 1000


def _train(x: Tensor, y: Tensor, settings: Settings, seed: int, talk: Connection) -> None:
    """One process: warms up, says so, waits for the word, trains `updates` batches, says how many seconds it took."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(seed)
    model = LeNet().to(memory_format=torch.channels_last)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=True)
    rows = torch.empty((settings.batch_size, *x.shape[1:]))  # (B, H, W, C)
    images = rows.permute(0, 3, 1, 2)
    labels = torch.empty(settings.batch_size, dtype=y.dtype)
    order = torch.randperm(len(x))
    per_epoch = len(x) // settings.batch_size

    def update(number: int) -> None:
        start = number % per_epoch * settings.batch_size
        chosen = order[start : start + settings.batch_size]
        torch.index_select(x, 0, chosen, out=rows)
        torch.index_select(y, 0, chosen, out=labels)
        optimizer.zero_grad(set_to_none=False)
        loss(model(images), labels).backward()
        optimizer.step()

    for number in range(WARM_UP):
        update(number)
    talk.send("ready")
    talk.recv()
    began = time.monotonic()
    for number in range(settings.updates):
        update(number)
    talk.send(time.monotonic() - began)


def samples_per_s(x: Tensor, y: Tensor, procs: int, settings: Settings) -> float:
    """All processes at once: the sum of what each trains a second. (Not all samples over the slowest one's time: on a
    machine whose cores are not equally free, that would charge the limit for a queue it does not have.) `x` (N, 1,
    28, 28) float32, `y` (N,) int64; put into shared memory here."""
    x, y = x.permute(0, 2, 3, 1).contiguous().share_memory_(), y.share_memory_()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the children, who read it when they load torch
    context = torch.multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(procs)]
    children = [
        context.Process(target=_train, args=(x, y, settings, seed, theirs)) for seed, (_, theirs) in enumerate(pairs)
    ]
    for child in children:
        child.start()
    del os.environ["OMP_NUM_THREADS"]
    for ours, _ in pairs:
        ours.recv()
    for ours, _ in pairs:
        ours.send("go")
    seconds = [ours.recv() for ours, _ in pairs]
    for child in children:
        child.join()
    return sum(settings.updates * settings.batch_size / taken for taken in seconds)
