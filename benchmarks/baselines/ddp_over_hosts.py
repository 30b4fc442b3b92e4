"""DistributedDataParallel over gloo between hosts: the training of `ddp.py` as one process per host, which torchrun
starts. Prints its samples a second, of this process alone; all wait for all, so every process has the same."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.baselines.networks import LENET, Batches, Settings, Shared, updates_of
from benchmarks.baselines.race import rate
from hogwild.data import Mnist

SAID = "samples/s:"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines.ddp_over_hosts")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")
    try:
        settings, data = (
            Settings(updates=asked.updates, warm_up=asked.warm_up),
            Shared.of(*Mnist(split="train").tensors),
        )
        torch.manual_seed(0)
        model = DistributedDataParallel(LENET.build(), gradient_as_bucket_view=True, static_graph=True)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        batches = Batches(LENET, data, settings.batch_size, seed=0, rank=rank, ranks=ranks)
        update = updates_of(model, batches, settings)
        rate(update, settings.warm_up, settings.batch_size)
        dist.barrier()
        print(SAID, rate(update, settings.updates, settings.batch_size), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
