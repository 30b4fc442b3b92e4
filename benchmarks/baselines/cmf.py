"""cmfrec (Cortes, 2018): factorisation with biases by alternating least squares, conjugate gradients inside (Hu, Koren
and Volinsky, 2008; Takács, Pilászy and Tikk, 2011), compiled, with threads.

Fair: the table in memory as it wants it (`load_s`); a regularisation that grows with the number of ratings of a row
(Zhou, Wilkinson, Schreiber and Pan, 2008) and the strength of it with the lowest test RMSE of those we tried.
It cannot be asked in between: every point of the way to an RMSE is a fit of its own."""

import time
from importlib.metadata import version

from benchmarks.sparse_peers import Found, answer

LAMBDA = 0.06
ITERATIONS = (1, 2, 3, 5, 8)


def measure(
    *,
    train: str,
    test: str,
    threads: int,
    factors: int,
    epochs: int,
    seed: int = 1,
    regularisation: float = LAMBDA,
) -> Found:
    """`train`, `test`: files of `sparse_data.save_ratings`; `epochs`: at most so many iterations."""
    began = time.perf_counter()
    import numpy as np
    from cmfrec import CMF
    from scipy.sparse import coo_matrix

    from benchmarks.sparse_data import RATING_COLUMNS, rmse

    imported = time.perf_counter()
    with np.load(train) as of_train, np.load(test) as of_test:
        table = {name: of_train[name] for name in RATING_COLUMNS}
        held_out = {name: of_test[name] for name in RATING_COLUMNS}
    read = time.perf_counter()
    shape = (int(table["user"].max()) + 1, int(table["item"].max()) + 1)
    matrix = coo_matrix((table["rating"].astype(np.float32), (table["user"], table["item"])), shape=shape)
    loaded = time.perf_counter()
    curve: list[tuple[float, float]] = []
    for iterations in (number for number in ITERATIONS if number <= epochs):
        model = CMF(
            k=factors, lambda_=regularisation, method="als", use_cg=True, niter=iterations, nthreads=threads,
            use_float=True, scale_lam=True, random_state=seed, verbose=False, precompute_for_predictions=False,
        )  # fmt: skip
        start = time.perf_counter()
        model.fit(matrix)
        seconds = time.perf_counter() - start
        offsets = (
            model.glob_mean_ + _known(model.user_bias_, held_out["user"]) + _known(model.item_bias_, held_out["item"])
        )
        curve.append((seconds, rmse(model.A_, model.B_, held_out, offsets)))
    note = f"cmfrec {version('cmfrec')}, ALS with biases, {threads} threads"
    return Found(
        len(table["user"]) * iterations / seconds, curve, version("cmfrec"), imported - began, loaded - read, note
    )


def _known(biases, places):  # type: ignore[no-untyped-def]
    """The bias of each place, 0 where there is none."""
    import numpy as np

    taken = biases[np.minimum(places, len(biases) - 1)].astype(np.float64)
    return np.where(places < len(biases), np.nan_to_num(taken), 0.0)


if __name__ == "__main__":
    answer(measure)
