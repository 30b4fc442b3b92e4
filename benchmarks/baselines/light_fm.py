"""LightFM's WARP (Kula 2015): Cython with OpenMP, the algorithm of `WarpFactorization`, without features. Installed as
`rectools-lightfm`, the same code: the original can no longer be built by pip.

Fair: the matrix lies in memory; Adagrad, its default; rate and penalty gave the best NDCG of a few tried."""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from benchmarks.sparse_peers import Found, answer


def measure(
    *, train: str, test: str, threads: int, factors: int, epochs: int, seed: int, rate: float = 0.02, l2: float = 0.0,
    report: Callable[[float], None] = lambda quality: None,
) -> Found:  # fmt: skip
    """`train`, `test`: files of `sparse_data.liked`. `report` gets the quality after each epoch, and ends the training
    with an exception."""
    began = time.perf_counter()
    from lightfm import LightFM

    from benchmarks.sparse_data import Parts, liked_matrix
    from benchmarks.sparse_ranking import ndcg

    imported = time.perf_counter()
    matrix = liked_matrix(train)
    loaded = time.perf_counter()
    model = LightFM(factors, loss="warp", learning_rate=rate, user_alpha=l2, item_alpha=l2, random_state=seed)
    spent, curve = 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        model.fit_partial(matrix, num_threads=threads)
        spent += time.perf_counter() - start
        users, items, biases = model.user_embeddings, model.item_embeddings, model.item_biases
        curve.append((spent, ndcg(users, items, biases, Parts(Path(train), Path(test)))))
        report(curve[-1][1])
    note = f"LightFM's WARP, {threads} threads"
    return Found(
        matrix.nnz * epochs / spent, curve, version("rectools-lightfm"), imported - began, loaded - imported, note
    )


if __name__ == "__main__":
    answer(measure)
