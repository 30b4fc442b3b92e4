"""Whatever lies in data that was looked at when it was loaded, a kernel reads and writes inside its arrays: each
family, compiled with bounds checks in a process of its own with an empty cache of compiled code, on small data of odd
shapes.

Run as a script it is that process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from tests.helpers.processes import PATIENCE_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(60)


def test_no_kernel_of_a_model_reads_or_writes_outside_its_arrays(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.split() == ["checked", "trained"]


def rows_of(random: np.random.Generator, features: int) -> dict[str, np.ndarray]:
    """Sparse rows, some of them empty, of up to 9 of so many features."""
    lengths = random.integers(0, min(features, 9) + 1, random.integers(1, 12))
    picked = [random.choice(features, n, replace=False) for n in lengths]
    return {
        "indptr": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "indices": np.concatenate([*picked, np.empty(0)]).astype(np.int32),
        "values": random.normal(size=lengths.sum()).astype(np.float32),
        "target": random.choice([-1.0, 1.0], len(lengths)).astype(np.float32),
    }


def ratings_of(random: np.random.Generator, users: int, items: int) -> dict[str, np.ndarray]:
    pairs = np.unique(random.integers(users * items, size=random.integers(1, 40)))
    return {
        "user": (pairs // items).astype(np.int32),
        "item": (pairs % items).astype(np.int32),
        "rating": random.normal(size=len(pairs)).astype(np.float32),
    }


def text_of(random: np.random.Generator, words: int) -> dict[str, np.ndarray]:
    """Sentences, some of a single word."""
    tokens = random.integers(words, size=random.integers(1, 50)).astype(np.int32)
    cuts = np.unique(random.integers(1, len(tokens) + 1, size=random.integers(0, 6)))
    return {
        "tokens": tokens,
        "starts": np.unique(np.concatenate([[0], cuts, [len(tokens)]])).astype(np.int64),
        "counts": np.bincount(tokens, minlength=words).clip(min=1).astype(np.int64),
    }


def spelled(model: Any, words: int) -> Any:
    model.on_names({"words": [str(7 * number) for number in range(words)]})
    return model


def families(random: np.random.Generator) -> list[tuple[Any, Any, Any, dict[str, np.ndarray]]]:
    """(model, loss, rule's class, arrays) with sizes down to 1."""
    from torch import nn, optim

    from hogwild import models
    from hogwild.losses import BprLoss, LogisticLoss, NegativeSampling, SoftmaxLoss, WarpLoss
    from hogwild.optimizers import FTRL, RowWiseAdagrad

    features, users, items, words = (int(n) for n in random.integers(2, 30, 4))
    features, users = max(1, features - 2), max(1, users - 2)
    rows, rated, text = rows_of(random, features), ratings_of(random, users, items), text_of(random, words)
    triples = np.stack(
        [random.integers(words, size=20), random.integers(3, size=20), random.integers(words, size=20)], 1
    )
    graph = {"triple": triples.astype(np.int32), "weight": np.ones(20, np.float32)}
    k = int(random.choice([1, 3, 8, 16, 17, 130]))
    return [
        (models.SparseLinear(features), LogisticLoss(), optim.SGD, rows),
        (models.SparseLinear(features), LogisticLoss(), optim.Adagrad, rows),
        (models.SparseLinear(features), LogisticLoss(), FTRL, rows),
        (models.FactorizationMachine(features, k), LogisticLoss(), optim.SGD, rows),
        (models.MatrixFactorization(users, items, k), nn.MSELoss(), optim.SGD, rated),
        (models.MatrixFactorization(users, items, k), nn.MSELoss(), RowWiseAdagrad, rated),
        (models.BprFactorization(users, items, k), BprLoss(), optim.SGD, rated),
        (models.WarpFactorization(users, items, k), WarpLoss(0.5), optim.Adagrad, rated),
        (models.SkipGram(words, dim=k, window=3, context=4), NegativeSampling(), optim.SGD, text),
        (models.SkipGram(words, dim=k, window=3, context=4, cbow=True), NegativeSampling(), optim.SGD, text),
        (
            spelled(models.SkipGram(words, dim=k, window=3, context=4, buckets=50), words),
            NegativeSampling(),
            optim.SGD,
            text,
        ),
        (models.ComplEx(words, 3, dim=2 * k, negatives=5), SoftmaxLoss(), RowWiseAdagrad, graph),
        (models.RotatE(words, 3, dim=2 * k, negatives=5, n3=0.1), SoftmaxLoss(), RowWiseAdagrad, graph),
    ]


def train_everything() -> None:
    import torch

    from hogwild.kernels.fused import Chunk, GridPlace, Sweeping

    for seed in SEEDS:
        random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        for model, loss, rule, arrays in families(random):
            if callable(getattr(model, "on_data", None)):
                model.on_data(arrays, None)
            optimizer = rule(model.parameters(), lr=0.05)
            update = model.fused(loss, optimizer)
            assert not isinstance(update, str), update
            samples = len(arrays["tokens"] if "tokens" in arrays else [*arrays.values()][-1])
            update.bind(model, optimizer, arrays, {})
            tally = update.run(Chunk(random.permutation(samples), seed))
            assert tally.applied + tally.not_finite <= samples
            if isinstance(update, Sweeping):
                words = np.zeros((2, 2), np.int64)[:, 0]
                place, columns = GridPlace(words, 0), np.arange(2)
                cut = int(random.integers(samples + 1))
                update.sweep(np.array([0, cut, samples]), np.ones(2, np.float32), columns, place, False)
            assert all(torch.isfinite(param).all() for param in model.parameters()), (seed, update.name)
    print("trained")


def check_that_bounds_are_checked() -> None:
    """Otherwise nothing below would prove anything: features that the weights have no room for."""
    import torch

    from hogwild import models
    from hogwild.kernels.fused import Chunk
    from hogwild.losses import LogisticLoss

    model = models.SparseLinear(4)
    arrays = rows_of(np.random.default_rng(1), 4) | {"indices": np.full(100, 4, np.int32)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = model.fused(LogisticLoss(), optimizer)
    assert not isinstance(update, str)
    update.bind(model, optimizer, arrays, {})
    try:
        update.run(Chunk(np.arange(len(arrays["target"])), 1))
    except IndexError:
        print("checked")


if __name__ == "__main__":
    check_that_bounds_are_checked()
    train_everything()
