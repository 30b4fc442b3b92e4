"""A job's kernel without a job: no supervisor, no queue, nobody else's parameter. One process of it is what the
roofline looks at; N processes, each with its own parameters, state and data, are *the limit* that N workers can
reach."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines.race import Line, race, total
from benchmarks.commands import ROOT
from benchmarks.sparse_data import data_folder
from hogwild.config.load import load_job
from hogwild.feeds.sample_order import Order
from hogwild.job.build import build
from hogwild.job.parts import Parts
from hogwild.kernels.fused import Chunk, FusedUpdate
from hogwild.planning.device_placement import planned
from hogwild.scheduling.batch_plan import batch_seed

WINDOW_S = 2.0  # of every process, after one batch that nobody counts


@dataclass(slots=True)
class Kernel:
    """A bound update, and the samples it is given: the job's batches in the job's order, epoch after epoch."""

    parts: Parts
    update: FusedUpdate
    arrays: dict[str, np.ndarray]
    order: Order
    seed: int
    number: int = 0

    @classmethod
    def of(cls, config: str, settings: Sequence[str] = (), seed: int = 1) -> "Kernel":
        """Return the kernel of `configs/CONFIG.yaml`, built, bound and compiled in this process. Raises ValueError
        where autograd would train."""
        job = load_job(ROOT / "configs" / f"{config}.yaml", (*settings, f"seed={seed}", "data.val=null"))
        parts = build(planned(job), data_folder())
        if parts.choice.update is None or parts.train.packed is None:
            raise ValueError(f"{config}: {parts.choice.why}")
        arrays = parts.train.packed.arrays()
        update = parts.choice.update
        update.bind(parts.model, parts.optimizer, arrays, {})
        made = cls(parts, update, arrays, parts.train.packed.order(job.data.shuffle, seed), seed)
        made.compile()
        return made

    def compile(self) -> None:
        """From the cache that a job has filled, or here."""
        from hogwild.kernels.kernel_cache import KernelCache

        cache = KernelCache.of(self.update.name)
        run: Callable[[], object] = lambda: self.update.run(Chunk(np.empty(0, np.int64), 0))  # noqa: E731
        if cache.is_whole():
            cache.load(run)
        else:
            run()

    def batch(self) -> int:
        """Trains the next one. Returns its samples."""
        plan = self.parts.train.plan
        epoch, number = divmod(self.number, plan.batches)
        first, last = plan.positions(number)
        self.update.run(Chunk(self.order.indices(epoch, first, last), batch_seed(self.seed, epoch, first)))
        self.number += 1
        return last - first

    def per_s(self, seconds: float) -> float:
        """Samples a second."""
        done, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds or not done:
            done += self.batch()
        return done / spent


def alone(config: str, settings: Sequence[str], runs: int) -> tuple[Kernel, list[float]]:
    """One kernel in this process, and how fast it was in each run, in samples a second."""
    kernel = Kernel.of(config, settings)
    kernel.batch()
    return kernel, [kernel.per_s(WINDOW_S) for _ in range(runs)]


def limit(config: str, settings: Sequence[str], procs: int) -> float:
    """Samples a second of so many processes at once, together."""
    return total(race(_train, [(config, tuple(settings), rank) for rank in range(procs)]))


def _train(line: Line, config: str, settings: Sequence[str], rank: int) -> None:
    kernel = Kernel.of(config, settings, seed=rank + 1)
    kernel.batch()
    line.ready()
    line.answer(kernel.per_s(WINDOW_S))


def describe(parts: Parts) -> str:
    """The model, the rule and the data in a few words."""
    sizes: dict[str, Any] = dict(parts.train.packed.spec.sizes) if parts.train.packed else {}
    return ", ".join(
        [type(parts.model).__name__, type(parts.optimizer).__name__, *(f"{n:,} {k}" for k, n in sizes.items())]
    )
