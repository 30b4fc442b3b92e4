"""A suite whose sections are measured and written one by one (`sparse.py`, `devices.py`): the rows of the others stay
as they were, with the day, commit and load of their own under `sections` in the JSON."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import results
from benchmarks.baselines.race import RunnerDied
from benchmarks.bench import say
from benchmarks.commands import CommandFailed
from benchmarks.dense import on_cores
from benchmarks.figures import Figure
from benchmarks.row import Row

Effort = TypeVar("Effort")


def main(
    suite: str,
    sections: Mapping[str, tuple[Callable[[Effort], list[Row]], Sequence[Figure]]],
    efforts: tuple[Effort, Effort],
    argv: Sequence[str] | None,
    needs: str = "",
) -> None:
    """The command of a suite: measure some or all sections, with the first of two efforts, or, on trial, the second.
    `needs`: what HOGWILD_DATA must hold."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{suite}")
    words = f"of {', '.join(sections)}; the other rows stay as they were"
    parser.add_argument("--only", type=partial(chosen, [*sections]), default=[*sections], metavar="NAME,…", help=words)
    parser.add_argument("--quick", action="store_true", help="a little of each; proves that it runs, keeps nothing")
    asked = parser.parse_args(argv)
    if needs and not os.environ.get("HOGWILD_DATA"):
        sys.exit(f"set HOGWILD_DATA to the folder that holds {needs}")
    with tempfile.TemporaryDirectory() as scratch:
        sheet = Sheet(suite, Path(scratch) if asked.quick else results.FOLDER)
        for name in asked.only:
            began = time.monotonic()
            run, figures = sections[name]
            rows = measure(name, partial(run, efforts[asked.quick]), figures)
            sheet.put(name, rows, time.monotonic() - began)


def measure(name: str, run: Callable[[], list[Row]], asked: Sequence[Figure]) -> list[Row]:
    """The rows of a section, on two cores. What could not be measured is a row too, without a value, and says why."""
    say(f"---- {name}")
    with on_cores(2):
        try:
            return run()
        except (CommandFailed, RunnerDied, RuntimeError) as error:
            say(f"{name} failed: {error}")
            return [figure.row([], note=f"failed: {error}") for figure in asked]


class Sheet:
    """A suite's results on their way into `folder`: each section is written as soon as it is measured, into what is
    there, and says when, of which commit, how long and beside what load it was."""

    def __init__(self, suite: str, folder: Path) -> None:
        self._suite, self._folder = suite, folder
        self._machine = results.begin() if folder == results.FOLDER else results.machine()

    def put(self, section: str, rows: Sequence[Row], seconds: float) -> None:
        file = self._folder / f"{self._suite}.json"
        before: dict[str, Any] = json.loads(file.read_text()).get("sections", {}) if file.exists() else {}
        said = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": results.commit(),
            "took_s": round(seconds),
            "load": round(os.getloadavg()[0], 2),
            "cpu": self._machine["cpu"],
        }
        described = {"sections": {**before, section: said}}
        results.update(self._suite, rows, self._machine, self._folder, described, is_quiet=True)
        print(results.table(rows), flush=True)


def chosen(names: Sequence[str], text: str) -> list[str]:
    """Return the sections of a list with commas, in the order of the suite. Raises ArgumentTypeError where one is
    unknown."""
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(f"no section is called {', '.join(unknown)}; there are {', '.join(names)}")
    return [name for name in names if name in wanted]
