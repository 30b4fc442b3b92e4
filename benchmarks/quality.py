"""The cost of asynchrony in quality, for every shipped config whose data is there: `make bench-quality`. Needs the
files of `HOGWILD_DATA`.

    python -m benchmarks.quality                     everything (about an hour on two cores)
    python -m benchmarks.quality --only imdb a9a     some; the other rows stay as they were, and the JSON file says of
                                                     each when and from which commit it was measured

Each job is trained as it is shipped, so with equal samples, by one worker, by two and by four, with five seeds. Asked
is that the mean of several workers lies within the spread of one worker's seeds. Workers start in turn, and a short job
is over before the second one is there; so the jobs of a config run in one process, whose workers wait for the next job
(as many as there are cores), and a row says how much was trained before all of them were there."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results, sparse_data
from benchmarks.bench import say
from benchmarks.commands import ROOT, before_all_were_there
from benchmarks.row import Row
from benchmarks.sections import Sheet
from hogwild import user_code
from hogwild.config.load import load_job
from hogwild.job.build import build
from hogwild.metrics.catalog import known
from hogwild.storage.run_directory import LIBRARY
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.run import run
from hogwild.workers.session.startup import Description

SUITE = "quality"
SEEDS = (1, 2, 3, 4, 5)
SEVERAL = (2, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """A shipped config, with the metric that says how good its result is."""

    name: str
    config: str
    metric: str
    settings: tuple[str, ...] = ()

    def rows(self, folder: Path) -> list[Row]:
        one, _ = self.trained(1, folder)
        in_catalog = known(self.metric)  # the metrics of ranks and of words are not, and higher is better
        sign = -1 if in_catalog is not None and not in_catalog.higher_is_better else 1
        mean, spread = statistics.fmean(one), max(one) - min(one)
        rows = []
        for procs in SEVERAL:
            found, alone = self.trained(procs, folder)
            less = [sign * (a - b) for a, b in zip(one, found, strict=True)]
            note = f"of {statistics.fmean(found):.4f}; baseline: of one worker, {min(one):.4f} to {max(one):.4f}"
            note += f"; {statistics.median(alone):.0%} was trained before all were there"
            rows.append(
                Row(f"{self.name}, {procs} workers: {self.metric} lost", "", spread, less, mean, note, True, "mean")
            )
            say(f"{rows[-1].figure}: {rows[-1].value:.4f}, allowed {spread:.4f}; {note}")
        return rows

    def trained(self, procs: int, folder: Path) -> tuple[list[float], list[float]]:
        """(the metric at the end, the share that was trained before all workers were there), one for each seed."""
        found, alone = [], []
        self.summary(procs, 0, folder, "train.max_updates=1")  # so that workers wait for the next one
        for seed in SEEDS:
            summary = self.summary(procs, seed, folder)
            found.append(float(summary["metrics"][self.metric]))
            alone.append(before_all_were_there(Path(summary["run_dir"])))
        return found, alone

    def summary(self, procs: int, seed: int, folder: Path, *more: str) -> dict:
        file = ROOT / "configs" / f"{self.config}.yaml"
        given = (*self.settings, f"train.procs={procs}", "train.threads=1", f"seed={seed}", "log.every_s=0.1", *more)
        job = load_job(file, given)
        result = run(
            Description(
                job=job,
                read=lambda plan, reader: build(plan, None, reader),
                run_dir=folder / f"{procs}-{seed}",  # what is parsed is kept beside them
                user_folders=tuple(user_code.user_path(file)),
                job_file=file,
                caller=LIBRARY,
                began_s=time.monotonic(),
            )
        )
        result.shared.release()
        if result.error is not None:
            raise result.error
        return result.summary


CASES = [
    *(
        Case(name, name, metric)
        for name, metric in {
            "digits": "accuracy", "csv_regression": "rmse", "own_model": "rmse", "mnist": "accuracy",
            "shakespeare": "loss", "speakers": "accuracy", "a9a": "accuracy", "imdb": "accuracy", "ratings": "rmse",
            "jester": "rmse", "implicit": "loss", "skipgram": "spearman", "codex": "mrr", "codex_transe": "mrr",
        }.items()
    ),
    Case("imdb, 12 epochs", "imdb", "accuracy", ("train.epochs=12",)),
]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", default=names, metavar="CASE", choices=names)
    only = parser.parse_args(argv).only
    sheet = Sheet(SUITE, results.FOLDER)
    sparse_data.data_folder()  # or the end
    for case in CASES:
        if case.name in only:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                rows = case.rows(Path(folder))
            sheet.put(case.name, rows, time.monotonic() - began)
    SERVER.close()


if __name__ == "__main__":
    main()
