"""Vowpal Wabbit on a table of categories: a namespace for each column, by FTRL-proximal, or with the interactions of
every two columns (`--lrqfa`, the field-aware factorisation machine).

Fair: rows come from its binary cache, written before the clock starts; nothing held out; rates as good as any of those
tried by hand on this table. Every number of passes is a run of its own: it cannot be asked in between."""

import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sparse_peers import Found, answer

PASSES = (1, 3, 6)
RULES = {
    "ftrl": "-b 18 --ftrl --ftrl_alpha 0.03 --ftrl_beta 0.1",
    "ffm": "-b 22 -l 0.1 --lrqfa {columns}4",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # its namespaces


def measure(*, train: str, test: str, model: str, threads: int, epochs: int, seed: int = 1) -> Found:
    """`train`, `test`: files of `sparse_data.census`; `model`: ftrl or ffm."""
    began = time.perf_counter()
    import numpy as np
    from vowpalwabbit import Workspace

    imported = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = _write(folder / "train.vw", train, seed)[1]
        wanted, _ = _write(folder / "test.vw", test, 0)
        rule = f"--loss_function logistic --holdout_off --quiet {RULES[model].format(columns=LETTERS[:columns])}"
        cache = f"--cache_file {folder / 'cache'}"
        written = time.perf_counter()
        Workspace(f"{rule} -d {folder / 'train.vw'} {cache} --passes 1").finish()
        loaded = time.perf_counter()
        curve: list[tuple[float, float]] = []
        rows = len((folder / "train.vw").read_text().splitlines())
        for passes in (number for number in PASSES if number <= epochs):
            start = time.perf_counter()
            Workspace(f"{rule} {cache} --passes {passes} -f {folder / 'model'}").finish()
            seconds = time.perf_counter() - start
            Workspace(f"-t --quiet -i {folder / 'model'} -d {folder / 'test.vw'} -r {folder / 'answers'}").finish()
            margins = np.loadtxt(folder / "answers", usecols=0)
            curve.append((seconds, float(np.mean(np.logaddexp(0.0, np.where(wanted, -margins, margins))))))
    note = f"Vowpal Wabbit {version('vowpalwabbit')}, {model}"
    return Found(rows * passes / seconds, curve, version("vowpalwabbit"), imported - began, loaded - written, note)


def _write(file: Path, path: str, seed: int) -> tuple[Any, int]:
    """Write the rows in its text format, shuffled unless `seed` is 0. Returns whether each is of the positive class,
    and the number of columns."""
    import numpy as np

    rows = [line.split(",") for line in Path(path).read_text().splitlines()[1:]]
    if seed:
        rows = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]
    with open(file, "w") as text:
        for target, *values in rows:
            words = [f"|{LETTERS[k]} {value}" for k, value in enumerate(values) if value]
            text.write(f"{2 * int(target) - 1} {' '.join(words)}\n")
    return np.array([row[0] == "1" for row in rows]), len(rows[0]) - 1


if __name__ == "__main__":
    answer(measure)
