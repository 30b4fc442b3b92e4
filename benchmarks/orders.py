"""The cost of the order of the samples (`data.shuffle`): the speed of gathering alone, which is where neighbours in
memory pay, and the accuracy that is reached with each. Part of the dense suite; nothing here has a target."""

import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks.commands import MNIST, job
from benchmarks.row import Row
from hogwild import host
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.scheduling.batch_plan import BatchPlan

ORDERS = ("full", "chunked", "none")
RUNS = 5
BATCHES = 3000  # in a run: about 0.1 s
BATCH_SIZE = 64
FEATURES = 784  # float32, as MNIST's images are
ROW_BYTES = 4 * FEATURES + 8
SIZES = {"in cache (8 MB)": 8 << 20, "200 MB": 200 << 20, "1 GB": 1 << 30}
SEEDS = (1, 2, 3)


def memory_order() -> list[Row]:
    """Samples a second of gathering batches of 64 out of shared memory, by one process on an otherwise idle machine: a
    row per size of the data and order; the baseline is a full shuffle of the same data."""
    rows: list[Row] = []
    for size, nbytes in SIZES.items():
        if 2 * nbytes > host.available_memory().bytes:  # the tensor, and its copy in shared memory
            rows += [Row(_figure(size, order), "samples/s", None, [], note="not enough memory") for order in ORDERS]
            continue
        runs = _gathering(nbytes // ROW_BYTES)
        baseline = statistics.median(runs["full"])
        rows += [Row(_figure(size, order), "samples/s", None, runs[order], baseline) for order in ORDERS]
    return rows


def _figure(size: str, order: str) -> str:
    return f"gathering alone, rows of 3 KB, {size}: {order}"


def _gathering(samples: int) -> dict[str, list[float]]:
    """Order -> samples a second of each run. The orders take turns; each goes on where its last run ended, so that
    neither finds in the cache what it gathered before, unless all of it fits."""
    data = ResidentData.from_tensors("order", (torch.ones(samples, FEATURES), torch.zeros(samples, dtype=torch.int64)))
    plan = BatchPlan(samples, BATCH_SIZE, drop_last=True)
    feeds = {order: ResidentFeed(data, plan, seed=1, order=order) for order in ORDERS}
    runs: dict[str, list[float]] = {order: [] for order in ORDERS}
    for run in range(RUNS):
        for order, feed in feeds.items():
            began = time.perf_counter()
            for number in range(run * BATCHES, (run + 1) * BATCHES):
                feed.gather(*divmod(number, plan.batches))
            runs[order].append(BATCHES * BATCH_SIZE / (time.perf_counter() - began))
    return runs


def convergence_of_orders(seeds: Sequence[int] = SEEDS, *more: str) -> list[Row]:
    """MNIST test accuracy after one epoch of LeNet with 2 workers: the mean over `seeds` for each order. MNIST's files
    are in no particular order; of data sorted by class only a full shuffle makes good batches. `more`: overrides."""
    runs = {
        order: [
            float(_trained(f"data.shuffle={order}", f"seed={seed}", *more)["metrics"]["accuracy"]) for seed in seeds
        ]
        for order in ORDERS
    }
    baseline = statistics.fmean(runs["full"])
    return [
        Row(
            f"MNIST test accuracy after 1 epoch, LeNet, 2 workers, data.shuffle {order}",
            "",
            None,
            runs[order],
            baseline,
            note=f"mean of {len(seeds)} seeds, spread {max(runs[order]) - min(runs[order]):.4f}; baseline: full",
            center="mean",
        )
        for order in ORDERS
    ]


def _trained(*overrides: str) -> dict:
    return job("train", MNIST, "--procs", "2", "train.epochs=1", *overrides)[1]
