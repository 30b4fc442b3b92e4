"""One process on one GPU that shares nothing: the loop everybody writes, its data on the device already, and the same
as a CUDA graph of the whole update (torch/cuda/graphs.py), which takes the launches away."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.baselines.networks import Network, Settings, Shared

DEVICE = torch.device("cuda", 0)


def samples_per_s(network: Network, data: Shared, settings: Settings, *, graph: bool) -> float:
    """The loss is read once per update, as ours is."""
    torch.manual_seed(0)
    model = network.build().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=True)
    x, y = data.x.to(DEVICE), data.y.to(DEVICE)
    rows, labels = x[: settings.batch_size].clone(), y[: settings.batch_size].clone()
    step = (
        _captured(network, model, optimizer, rows, labels) if graph else _plain(network, model, optimizer, rows, labels)
    )
    order = torch.randperm(len(x), device=DEVICE)

    def updates(count: int) -> None:
        for number in range(count):
            start = number * settings.batch_size % (len(x) - settings.batch_size)
            chosen = order[start : start + settings.batch_size]
            torch.index_select(x, 0, chosen, out=rows)
            torch.index_select(y, 0, chosen, out=labels)
            step().item()

    updates(settings.warm_up)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    updates(settings.updates)
    torch.cuda.synchronize()
    return settings.updates * settings.batch_size / (time.perf_counter() - began_s)


def _plain(
    network: Network, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(network.shown(rows)), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(
    network: Network, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    step = _plain(network, model, optimizer, rows, labels)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay
