"""Vowpal Wabbit as an online learner: one pass over a stream of clicks, a namespace for each column, their interactions
by learnt vectors (`--lrq`), all hashed into 2**bits weights. Its progressive loss scores each row before it is learnt.

Fair: it reads its own text format, written before the clock starts; one thread parses, another one learns."""

import csv
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.sparse_peers import Found, answer

LETTERS = "uas"  # its namespaces
PAIRS = ("ua", "us", "as")


def measure(*, clicks: str, bits: int, factors: int, threads: int, seed: int = 1) -> Found:
    """`clicks`: a file of `named.write_clicks`. The quality is the progressive log loss of the whole pass."""
    began = time.perf_counter()
    from vowpalwabbit import Workspace

    imported = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "clicks.vw"
        with open(clicks) as table, open(file, "w") as text:
            rows = csv.reader(table)
            next(rows)
            for click, *names in rows:
                words = " ".join(f"|{letter} {one}" for letter, one in zip(LETTERS, names, strict=True))
                text.write(f"{2 * int(click) - 1} {words}\n")
        written = time.perf_counter()
        lrq = " ".join(f"--lrq {pair}{factors}" for pair in PAIRS)
        learner = Workspace(
            f"--loss_function logistic --holdout_off --quiet -b {bits} --random_seed {seed} {lrq} -d {file}"
        )
        learner.finish()
        seconds = time.perf_counter() - written
        loss, count = learner.get_sum_loss(), learner.get_weighted_examples()
    note = f"Vowpal Wabbit {version('vowpalwabbit')}, {bits} bits, {factors} factors"
    return Found(count / seconds, [(seconds, loss / count)], version("vowpalwabbit"), imported - began, 0.0, note)


if __name__ == "__main__":
    answer(measure)
