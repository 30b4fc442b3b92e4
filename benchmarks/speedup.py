"""The gain of the second worker, for every shipped config whose data is there: `make bench-speedup`. Needs the files of
`HOGWILD_DATA`. Run nothing else meanwhile.

    python -m benchmarks.speedup                     everything (about an hour on two cores)
    python -m benchmarks.speedup --only imdb a9a     some; the other rows stay as they were

Three ways take turns: one worker, two workers, and two jobs of one worker each at the same time, which share nothing:
more than they gain over one, two workers can hardly gain. All with one thread a worker, for TRAINING_S, nothing
evaluated; counted from the first record after the last worker was ready. Then the whole command as it is shipped
(`procs: auto`: a short job has one worker), beside `procs: 1`.

`--only together`: two commands of one worker each with the threads that they choose, started at once; they share the
cores by leases. The machine is what one command with two workers makes."""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands, results, sparse_data
from benchmarks.bench import NO_EVALUATION, in_turn, median, say
from benchmarks.commands import ROOT, CommandFailed
from benchmarks.row import Row
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.synthetic_ratings import HUNDRED_THOUSAND, MILLION, Shape

SUITE = "speedup"
OF_INDEPENDENT, IDLE = 0.97, 0.05
TOGETHER, OF_MACHINE = "together", 0.9
RUNS, TRAINING_S = 3, 6.0
# All but those whose data is not in HOGWILD_DATA (fashion_mnist, names, text8), or is another run (finetune).
CONFIGS = (
    "digits", "csv_regression", "own_model", "mnist", "mnist_stream", "shakespeare", "speakers", "a9a", "imdb",
    "ratings", "jester", "implicit", "skipgram", "codex", "codex_transe",
)  # fmt: skip
SIZES = {"100,000 ratings": HUNDRED_THOUSAND, "a million ratings": MILLION, "25 million ratings": Shape()}


@dataclass(frozen=True, slots=True)
class Case:
    """A job and its settings; runs of it lie in `folder`, with what is kept of its data."""

    name: str
    config: str
    folder: Path
    settings: tuple[str, ...] = ()

    def job(self, procs: int | str, *more: str, run_dir: Path | None = None) -> tuple[float, dict[str, Any]]:
        run_dir = run_dir or self.new_run()
        file = str(ROOT / "configs" / f"{self.config}.yaml")
        return commands.job("train", file, f"train.procs={procs}", *self.settings, *more, run_dir=run_dir)

    def new_run(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def epochs(self, training_s: float = TRAINING_S) -> int:
        """In how many one worker trains for so long; the second try knows the speed."""
        epochs = 2
        for _ in range(2):
            _, summary = self.trained(1, epochs)
            epochs = max(2, math.ceil(training_s * summary["samples_per_s"] * epochs / summary["samples"]))
        return epochs

    def trained(self, procs: int, epochs: int, threads: int | str = 1) -> tuple[float, dict[str, Any]]:
        """(samples a second once all workers are there, the summary)."""
        run_dir = self.new_run()
        settings = (*NO_EVALUATION, *commands.OFTEN, f"train.threads={threads}", f"train.epochs={epochs}")
        summary = self.job(procs, *settings, run_dir=run_dir)[1]
        return commands.settled(run_dir) or summary["samples_per_s"], summary

    def independent(self, epochs: int, jobs: int = 2, threads: int | str = 1) -> float:
        """Samples a second of so many jobs of one worker at once."""
        with ThreadPoolExecutor(jobs) as pool:
            return sum(pool.map(lambda _: self.trained(1, epochs, threads)[0], range(jobs)))

    def together(self) -> Row:
        epochs = self.epochs()
        alone, machine, both = in_turn(
            RUNS,
            lambda: self.trained(1, epochs, "auto")[0],
            lambda: self.trained(2, epochs, "auto")[0],
            lambda: self.independent(epochs, threads="auto"),
        )
        note = f"baseline: one command with two workers, samples/s; one of one worker, alone: {median(alone):,.0f}"
        ratios = [a / b for a, b in zip(both, machine, strict=True)]
        return Row(f"{self.name}: two commands at once", "x", OF_MACHINE, ratios, median(machine), note)

    def rows(self) -> list[Row]:
        epochs = self.epochs()
        idle: list[float] = []

        def two() -> float:
            rate, summary = self.trained(2, epochs)
            idle.append(summary["idle"])
            return rate

        one, both, apart = in_turn(RUNS, lambda: self.trained(1, epochs)[0], two, lambda: self.independent(epochs))
        alone, shipped = in_turn(RUNS, lambda: self.job(1)[0], lambda: self.job("auto")[0])
        limit = median([a / b for a, b in zip(apart, one, strict=True)])
        target = OF_INDEPENDENT * limit
        note = f"two jobs that share nothing gain {limit:.2f}; baseline: one worker, samples/s; {epochs} epochs"
        gains = [a / b for a, b in zip(both, one, strict=True)]
        rows = [
            Row(f"{self.name}: training", "x", target, gains, median(one), note),
            Row(f"{self.name}: idle", "", IDLE, idle, smaller_is_better=True),
            Row(f"{self.name}: the whole command", "x", 1.0, [a / b for a, b in zip(alone, shipped, strict=True)],
                median(alone), "baseline: one worker, seconds"),
        ]  # fmt: skip
        for row in rows:
            say(f"{row.figure}: {row.value:.3f}, asked {row.target:.3f}")
        return rows


def cases(folder: Path, only: Sequence[str]) -> list[Case]:
    found = [Case(name, name, _made(folder / name)) for name in CONFIGS if not only or name in only]
    for name, shape in SIZES.items():
        if not only or name in only:
            parts = sparse_data.synthetic(_made(folder / name), shape)
            found.append(Case(name, "ratings", folder / name, ratings_settings(parts, FACTORS)))
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", choices=[*CONFIGS, *SIZES, TOGETHER])
    only = parser.parse_args().only
    described = results.begin()
    sparse_data.data_folder()  # or the end
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder), only):
            try:
                rows = case.rows()
            except CommandFailed as error:
                sys.exit(f"{case.name}: {error}")
            results.update(SUITE, rows, described, is_quiet=True)
        if not only or TOGETHER in only:
            results.update(
                SUITE, [Case("mnist", "mnist", _made(Path(folder) / TOGETHER)).together()], described, is_quiet=True
            )


if __name__ == "__main__":
    main()
