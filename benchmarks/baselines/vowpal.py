"""Vowpal Wabbit (Langford, Li and Strehl, 2007; adaptive, normalised, invariant updates) on sparse rows: the C++
program inside the package of the same name, told what to do as on its command line.

Fair: rows come from its binary cache, written before the clock starts (`load_s`); plain counts, which it scales by
itself and which suit it better than rows of length one (0.887 after one pass; 0.881); 18 bits, so that no two of the
89,527 features share a weight; nothing held out. It parses in one thread and learns in another, whatever it is given.
It cannot be asked in between: every point of the way to an accuracy is a run of its own."""

import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sparse_peers import Found, answer

PREPARATION = "counts"
PASSES = (1, 2, 3, 4)
RULE = "--loss_function logistic -b 18 --holdout_off --quiet --learning_rate 0.5"


def measure(
    *, train: str, test: str, features: int, threads: int, epochs: int, seed: int = 1, share: float = 1.0,
    preparation: str = PREPARATION, rule: str = RULE,
) -> Found:  # fmt: skip
    """`train`, `test`: files of `sparse_data.bag_of_words`. `share`: of the training rows, to try it out."""
    began = time.perf_counter()
    import numpy as np
    from vowpalwabbit import Workspace

    imported = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "train.vw", train, preparation, share, seed)
        wanted = _write(folder / "test.vw", test, preparation, 1.0, seed)
        written = time.perf_counter()
        cache = f"--cache_file {folder / 'cache'}"
        Workspace(f"{rule} -d {folder / 'train.vw'} {cache} --passes 1").finish()
        loaded = time.perf_counter()
        curve: list[tuple[float, float]] = []
        for passes in (number for number in PASSES if number <= epochs):
            start = time.perf_counter()
            Workspace(f"{rule} {cache} --passes {passes} -f {folder / 'model'}").finish()
            seconds = time.perf_counter() - start
            Workspace(f"-t --quiet -i {folder / 'model'} -d {folder / 'test.vw'} -p {folder / 'answers'}").finish()
            answers = np.loadtxt(folder / "answers")
            curve.append((seconds, float(np.mean((answers > 0) == (wanted > 0)))))
    with np.load(train) as rows:
        trained = int(share * len(rows["target"])) * passes
    note = f"Vowpal Wabbit {version('vowpalwabbit')}; its text file was written in {written - imported:.1f} s more"
    return Found(trained / seconds, curve, version("vowpalwabbit"), imported - began, loaded - written, note)


def _write(file: Path, path: str, preparation: str, share: float, seed: int) -> Any:
    """The rows, shuffled, in its text format. Returns their targets."""
    import numpy as np

    from benchmarks.sparse_data import prepared

    with np.load(path) as rows:
        indptr, indices, values, target = (rows[name] for name in ("indptr", "indices", "values", "target"))
    values = prepared(values, indptr, preparation)
    order = np.random.default_rng(seed).permutation(len(target))[: int(share * len(target))]
    with open(file, "w") as text:
        for row in order:
            where = slice(indptr[row], indptr[row + 1])
            words = " ".join(
                f"{k}:{v:.6g}" for k, v in zip(indices[where].tolist(), values[where].tolist(), strict=True)
            )
            text.write(f"{target[row]} |f {words}\n")
    return target[order]


if __name__ == "__main__":
    answer(measure)
