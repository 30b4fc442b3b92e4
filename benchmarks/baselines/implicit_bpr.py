"""implicit's BPR (Frederickson): C++ with OpenMP, the algorithm of `BprFactorization`.

Fair: the matrix lies in memory; wrong answers are checked against what the user has, as ours are; rate and
regularisation gave the best NDCG of a few tried."""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sparse_peers import Found, answer


def measure(
    *, train: str, test: str, threads: int, factors: int, epochs: int, seed: int, rate: float = 0.02, l2: float = 0.01,
    report: Callable[[float], None] = lambda quality: None,
) -> Found:  # fmt: skip
    """`train`, `test`: files of `sparse_data.liked`. An epoch draws as many pairs as there are. `report` gets the
    quality after each epoch, and ends the training with an exception."""
    began = time.perf_counter()
    import numpy as np
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    from benchmarks.sparse_data import Parts, liked_matrix
    from benchmarks.sparse_ranking import ndcg

    imported = time.perf_counter()
    matrix = liked_matrix(train).tocsr()
    loaded = time.perf_counter()
    model = BayesianPersonalizedRanking(
        factors=factors, learning_rate=rate, regularization=l2, iterations=epochs, num_threads=threads,
        random_state=seed,
    )  # fmt: skip
    spent, curve = 0.0, []

    def after(epoch: int, elapsed: float, *counts: Any) -> None:
        nonlocal spent
        spent += elapsed
        offsets = np.zeros(matrix.shape[1], np.float32)  # its biases are a factor
        curve.append((spent, ndcg(model.user_factors, model.item_factors, offsets, Parts(Path(train), Path(test)))))
        report(curve[-1][1])

    model.fit(matrix, show_progress=False, callback=after)
    note = f"implicit's BPR, {threads} threads"
    return Found(matrix.nnz * epochs / spent, curve, version("implicit"), imported - began, loaded - imported, note)


if __name__ == "__main__":
    answer(measure)
