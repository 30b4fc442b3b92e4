"""The rivals for a large dense model: DistributedDataParallel over gloo, or one plain process with all
threads. Both as `ddp.py` and `limit.py` have them (data in shared memory, reused buffers, fused SGD), and both are
asked for the loss on test data as well, after so many samples of all processes together."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.baselines.networks import Batches, Network, Settings, Shared, updates_of
from benchmarks.baselines.race import Line, race, rate, total


@dataclass(frozen=True, slots=True)
class Sized(Network):
    """Network of `networks.py` whose MLP has the given hidden layers."""

    hidden: tuple[int, ...] = ()

    def build(self) -> nn.Module:
        from hogwild.models import Mlp

        torch.manual_seed(1)
        return Mlp(features=784, hidden=list(self.hidden), classes=10)


@dataclass(frozen=True, slots=True)
class Answer:
    """`loss`: on the test data, after the measured updates and those of the warm-up."""

    samples_per_s: float
    loss: float


def ddp(network: Sized, train: Shared, test: Shared, procs: int, settings: Settings) -> Answer:
    """`settings.updates` of each process."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        arguments = [(network, train, test, settings, rank, procs, meeting) for rank in range(procs)]
        answers = race(_replica, arguments)
    return Answer(total([answer.samples_per_s for answer in answers]), answers[0].loss)


def one_process(network: Sized, train: Shared, test: Shared, threads: int, settings: Settings) -> Answer:
    answer: Answer
    (answer,) = race(_alone, [(network, train, test, settings, threads)])
    return answer


def _replica(
    line: Line, network: Sized, train: Shared, test: Shared, settings: Settings, rank: int, procs: int, meeting: str
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=procs)
    try:
        model = DistributedDataParallel(network.build(), gradient_as_bucket_view=True, static_graph=True)
        _train(line, model, network, train, test, settings, rank, procs)
    finally:
        dist.destroy_process_group()


def _alone(line: Line, network: Sized, train: Shared, test: Shared, settings: Settings, threads: int) -> None:
    torch.set_num_threads(threads)
    _train(line, network.build(), network, train, test, settings, 0, 1)


def _train(
    line: Line, model: nn.Module, network: Sized, train: Shared, test: Shared, settings: Settings, rank: int, ranks: int
) -> None:
    batches = Batches(network, train, settings.batch_size, seed=0, rank=rank, ranks=ranks)
    update = updates_of(model, batches, settings)
    rate(update, settings.warm_up, settings.batch_size)
    line.ready()
    found = rate(update, settings.updates, settings.batch_size)
    line.answer(Answer(found, _test_loss(model, network, test)))


def _test_loss(model: nn.Module, network: Sized, test: Shared) -> float:
    plain = getattr(model, "module", model)
    sums: list[Tensor] = []
    with torch.no_grad():
        for x, y in zip(test.x.split(500), test.y.split(500), strict=True):
            sums.append(nn.functional.cross_entropy(plain(network.shown(x)), y, reduction="sum"))
    return float(sum(sums)) / len(test.y)
