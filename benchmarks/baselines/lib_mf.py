"""LIBMF (Chin, Yuan, Zhuang, Juan and Lin, 2015/2016): factorisation by SGD over a grid of blocks, in C++ with SSE, its
own threads; through the Python binding of the same name.

Fair: called as a library with the table in memory; L1 off, which the binding would leave at 0.04; the regularisation
and rate that gave the lowest test RMSE of those we tried. Its result is scored by us, as P times Q: the binding's own
`predict` disagrees with its factors. The program cannot be asked in between: the way to the best RMSE is one run that
prints its own validation error after each iteration (and agrees with ours at the end, or this fails), spread over the
time of a run that does not validate."""

import contextlib
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sparse_peers import Found, answer

LAMBDA, RATE = 0.04, 0.1
AGREES = 0.005


def measure(
    *, train: str, test: str, threads: int, factors: int, epochs: int, seed: int = 1, is_curve: bool = True,
    regularisation: float = LAMBDA, rate: float = RATE,
) -> Found:  # fmt: skip
    """`train`, `test`: files of `sparse_data.save_ratings`. Without `is_curve` only the speed is measured; `seed`
    is not used: the program has its own."""
    began = time.perf_counter()
    import numpy as np
    from libmf import mf

    from benchmarks.sparse_data import rmse

    imported = time.perf_counter()
    tables = {part: np.load(path) for part, path in (("train", train), ("test", test))}
    parts = {
        part: {name: table[name] for name in ("user", "item", "rating")} for part, table in tables.items()
    }  # read once: an npz reads its file at every look
    read = time.perf_counter()
    stacked = {part: _stacked(parts[part]) for part in parts}
    loaded = time.perf_counter()

    def model(iterations: int, quiet: bool = True) -> Any:
        return mf.MF(
            k=factors, nr_threads=threads, nr_iters=iterations, nr_bins=max(26, 2 * threads + 1), eta=rate, quiet=quiet,
            lambda_p2=regularisation, lambda_q2=regularisation, lambda_p1=0.0, lambda_q1=0.0,
        )  # fmt: skip

    def seconds(iterations: int) -> tuple[float, Any]:
        made = model(iterations)
        start = time.perf_counter()
        made.fit(stacked["train"])
        return time.perf_counter() - start, made

    one_s, _ = seconds(1)
    all_s, fitted = seconds(epochs)
    epoch_s = max(1e-9, (all_s - one_s) / max(1, epochs - 1))
    quality = rmse(fitted.p_factors(), fitted.q_factors(), parts["test"])
    curve = [(all_s, quality)]
    if is_curve:
        with _printed() as lines:
            model(epochs, quiet=False).mf_train_test(stacked["train"], stacked["test"])
        scores = _validations(lines)
        if len(scores) != epochs or abs(scores[-1] - quality) > AGREES:
            raise RuntimeError(f"libmf printed {scores} for {epochs} iterations; P times Q has {quality:.4f}")
        curve = [(one_s + number * epoch_s, score) for number, score in enumerate(scores)]
    note = f"libmf, {threads} threads; placing the table in its blocks {max(0.0, one_s - epoch_s):.2f} s"
    return Found(len(stacked["train"]) / epoch_s, curve, version("libmf"), imported - began, loaded - read, note)


def _stacked(table: dict[str, Any]) -> Any:
    """(N, 3) float32, as the binding wants it."""
    import numpy as np

    return np.stack([table[name].astype(np.float32) for name in ("user", "item", "rating")], axis=1)


@contextlib.contextmanager
def _printed() -> Iterator[list[str]]:
    """Catch the lines that compiled code prints meanwhile, as lines, once it is over."""
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "printed"
        with open(file, "wb") as printed:
            os.dup2(printed.fileno(), 1)
        try:
            yield lines
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
        lines += file.read_text().splitlines()


def _validations(lines: list[str]) -> list[float]:
    """The third column of the table that libmf prints: iteration, training RMSE, validation RMSE, objective."""
    rows = [line.split() for line in lines]
    return [float(row[2]) for row in rows if len(row) == 4 and row[0].isdigit()]


if __name__ == "__main__":
    answer(measure)
