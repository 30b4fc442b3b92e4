"""DistributedDataParallel over gloo: what torch's own documentation recommends for several processes. Every process
has a replica; gradients are averaged in each update, so all wait for all.

Fair because it has everything the limit has (data in shared memory, `index_select` into reused buffers, channels_last
for convolutions, fused SGD, one thread), gradients are views of the reduction buckets (no copy), the graph is declared
static (buckets are rebuilt once, unused parameters are not looked for), and every process takes a whole batch: with the
job's batch cut in two it would talk twice as often for the same samples. Rank r takes its part of each permutation."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.baselines.networks import Batches, Network, Settings, Shared, updates_of
from benchmarks.baselines.race import Line, race, rate, total


def samples_per_s(network: Network, data: Shared, procs: int, settings: Settings) -> float:
    """Return the samples a second of all processes together."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        return total(race(_train, [(network, data, settings, rank, procs, meeting) for rank in range(procs)]))


def _train(line: Line, network: Network, data: Shared, settings: Settings, rank: int, procs: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=procs)
    try:
        torch.manual_seed(0)
        model = DistributedDataParallel(network.build(), gradient_as_bucket_view=True, static_graph=True)
        batches = Batches(network, data, settings.batch_size, seed=0, rank=rank, ranks=procs)
        update = updates_of(model, batches, settings)
        rate(update, settings.warm_up, settings.batch_size)
        line.ready()
        line.answer(rate(update, settings.updates, settings.batch_size))
    finally:
        dist.destroy_process_group()
