"""Processes that claim rows of a shared `NamedEmbedding`, and what is wrong with the table once they are dead."""

import os
import signal
import warnings
from collections.abc import Callable

import numpy as np
import torch

from hogwild.kernels import row_claims
from hogwild.kernels.signatures import GONE, HEAD
from hogwild.nn import NamedEmbedding


def forked(work: Callable[[], object]) -> int:
    """Do work in a child process; return its pid."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def killed(pids: list[int]) -> None:
    """Kill and reap all of them; the list is empty then."""
    while pids:
        pid = pids.pop()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def writing(ours: NamedEmbedding, population: int, seed: int) -> None:
    """Claim ids in [1, population) at random for ever, and write each id into its row."""
    warnings.simplefilter("ignore")  # the table is full
    draws, weight = np.random.default_rng(seed), ours.weight.detach()
    while True:
        ids = torch.from_numpy(draws.integers(1, population, 64))
        rows = ours.rows_of(ids, claim=True)
        weight[rows[rows > 0]] = ids[rows > 0].float()[:, None].expand(-1, ours.embedding_dim)


def rows_by_id(ours: NamedEmbedding) -> dict[int, int]:
    """Return the row of each id that has one; of an id with two rows the last."""
    keys = ours._arrays().keys
    places = np.flatnonzero(keys > GONE)
    return dict(zip(keys[places].tolist(), (places + HEAD).tolist(), strict=True))


def faults_of(ours: NamedEmbedding, population: int) -> dict[str, int]:
    """Return what is wrong with a table in which `writing` was killed: ids whose row a search does not reach, ids with
    two rows or that nobody gave, rows with a vector that is neither their id's nor, as a kill may leave a part of one,
    the initial one. A row without an id has its initial values."""
    arrays = ours._arrays()
    taken = arrays.keys[arrays.keys > GONE]
    rows = np.arange(len(arrays.keys)) + HEAD
    fresh = np.zeros((len(rows) + HEAD, ours.embedding_dim), np.float32)
    row_claims.draw(fresh, rows, ours.seed, ours.std, 0)
    keys = arrays.keys.astype(np.float32)[:, None]
    is_own = (arrays.weight[rows] == keys) & (keys > 0)
    found = ours.rows_of(torch.from_numpy(taken.copy())).numpy()
    return {
        "lost": int((arrays.keys[found - HEAD] != taken).sum()),
        "doubled": len(taken) - len(np.unique(taken)) + int(((taken <= 0) | (taken >= population)).sum()),
        "mixed": int((~((arrays.weight[rows] == fresh[rows]) | is_own)).any(1).sum()),
    }
