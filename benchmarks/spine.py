"""The figures of the spine: `make bench-spine`. Needs the MNIST files (`HOGWILD_DATA`). Run nothing else meanwhile.

Ours and the limit alternate, so that a noisy minute hits both; every figure is the median of RUNS.
"""

import os
import sys
from functools import partial

from benchmarks import figures
from benchmarks.bench import FULL, Bench, in_turn, median
from benchmarks.commands import MNIST, job, seconds
from benchmarks.figures import LENET, LIMIT, Figure
from benchmarks.results import begin, write
from benchmarks.row import Row

RUNS = 5
OVER_THE_LIMIT = Figure("LeNet, 2 workers: samples/s over the limit", 0.85)
NOTE = "evaluation and all; the limit: "


def digits() -> list[Row]:
    runs = [job("--procs", "4") for _ in range(RUNS)]
    return [
        Row("digits default job: test accuracy", "", 0.96, [run["metrics"]["accuracy"] for _, run in runs]),
        Row("digits default job: whole command", "s", 30.0, [s for s, _ in runs], smaller_is_better=True),
    ]


def mnist() -> Row:
    runs = [job("train", MNIST, "--procs", "2")[1] for _ in range(3)]
    return Row("MNIST, 2 workers: test accuracy within 4 epochs", "", 0.98, [r["metrics"]["accuracy"] for r in runs])


def lenet_over_the_limit() -> Row:
    bench = Bench(FULL)

    def ours() -> float:
        return float(job("train", MNIST, "--procs", "2", "train.epochs=3")[1]["samples_per_s"])

    limit, we = in_turn(RUNS, partial(bench.limit, LENET, 2), ours)
    return figures.over(OVER_THE_LIMIT, we, limit, baseline=LIMIT, network=LENET, note=NOTE + str(bench.way(LENET)))


def start_of_the_command_line() -> list[Row]:
    rows: list[Row] = []
    for name, argv in (("--help", ["run.py", "--help"]), ("check", ["run.py", "check", "configs/mnist.yaml"])):
        imports, ours = in_turn(RUNS, partial(seconds, "-c", "import torch"), partial(seconds, *argv))
        ratios = [a / b for a, b in zip(ours, imports, strict=True)]
        figure = Figure(f"{name}: time over `import torch`", 0.5, smaller_is_better=True)
        rows.append(figure.row(ratios, median(imports), "baseline in seconds"))
    return rows


def main() -> None:
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = begin()
    write("spine", [*digits(), mnist(), lenet_over_the_limit(), *start_of_the_command_line()], described)


if __name__ == "__main__":
    main()
