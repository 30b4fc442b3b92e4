"""Writing of a report, of one run or of several, to disk. It takes no lock: the job has it.

Every file is written under a temporary name and renamed, as everywhere in a run directory; pictures of an earlier
report that this one lacks are removed."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hogwild.errors import UsageError
from hogwild.formatting import moment
from hogwild.monitoring import tensorboard
from hogwild.report import tables
from hogwild.report.page import Picture, contents, gallery, header, notes, page, table
from hogwild.report.run_data import Run, read_run
from hogwild.storage.files import replace
from hogwild.storage.records import explained

INDEX = "index.html"
INSTALL = "pip install 'hogwild[report]'"
LONGEST_NAME = 120  # of a comparison's folder: a file system allows 255 bytes


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The report's paths: the page, and its pictures beside it. `missing`: what it does not contain, and why."""

    index: Path
    pictures: tuple[Path, ...]
    missing: tuple[str, ...]


def write_report(path: Path, out: Path | None = None) -> WrittenReport:
    """Write the page of one run to RUN/report or to `out`. Raises NotFoundError if there is no run, UsageError without
    matplotlib, RunDirError if it cannot be written."""
    run = read_run(path)
    with _drawing():
        from hogwild.report.figures import NAMES, pictures

        drawn = list(pictures(run))
    missing = tables.missing(run)
    places = [str(run.path), f"Page made {moment(run.read_at)} from the files of the run directory."]
    head = header(str(run.summary.get("name") or run.name), places, tables.headline(run))
    text = page(f"{run.name}: a run of hogwild", _parts(head, drawn, missing, list(tables.tables(run))))
    written = _write(out if out is not None else run.path / "report", text, drawn, NAMES, missing)
    _to_tensorboard(run, drawn)
    return written


def write_comparison(paths: Sequence[Path], out: Path | None = None) -> WrittenReport:
    """Write the page of several runs to FIRST/report/report-NAME1-NAME2 or to `out`. Raises as `write_report`, and
    UsageError for the same run twice."""
    resolved = [path.resolve() for path in paths]
    twice = next((path for place, path in enumerate(resolved) if path in resolved[:place]), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice; name different runs to compare", code="usage/contradiction")
    runs = [read_run(path) for path in paths]
    with _drawing():
        from hogwild.report.overlays import NAMES, overlays

        drawn = list(overlays(runs))
    names = tables.labels(runs)
    missing = [f"{name}: {line}" for name, run in zip(names, runs, strict=True) for line in tables.missing(run)]
    head = header(" and ".join(names), [str(run.path) for run in runs])
    text = page(f"{len(runs)} runs of hogwild", _parts(head, drawn, missing, [*tables.differences(runs)], above=1))
    folders = "-".join(re.sub(r"[^\w.+-]+", "_", run.name) for run in runs)
    beside = runs[0].path / "report" / f"report-{folders}"[:LONGEST_NAME]
    return _write(out if out is not None else beside, text, drawn, NAMES, missing)


def _parts(
    head: str, drawn: Sequence[Picture], missing: Sequence[str], found: Sequence[tables.TableRows], above: int = 0
) -> list[str]:
    """Return the page's parts: the pictures stand below the first `above` tables."""
    return [
        head,
        contents([*(["Pictures"] if drawn else []), *(one.title for one in found)]),
        *map(table, found[:above]),
        *([gallery("Pictures", drawn)] if drawn else []),
        *([notes("What is not in this report", missing)] if missing else []),
        *map(table, found[above:]),
    ]


def _to_tensorboard(run: Run, drawn: Sequence[Picture]) -> None:
    """Add the pictures to a finished job's TensorBoard curves, if it wrote any, as the run `report`; replaces those of
    the previous report."""
    samples = run.records.train["samples"]
    if not (drawn and run.is_over and (run.path / "tensorboard").is_dir() and tensorboard.is_installed()):
        return
    folder = run.path / "tensorboard" / "report"
    with explained(f"cannot write the pictures to {folder}"):
        for before in folder.glob("events.out.tfevents.*"):
            before.unlink()
        at = int(samples[np.isfinite(samples)][-1]) if np.isfinite(samples).any() else 0
        figures = {one.name: one.png for one in drawn}
        tensorboard.add_figures(folder, figures, samples=at, time_s=run.read_at)


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Draw with the settings of all pictures. Raises UsageError without matplotlib."""
    try:
        from hogwild.report.style import drawing

        with drawing():
            yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        words = f"a report needs matplotlib, which is not installed: {INSTALL}"
        raise UsageError(words, code="usage/missing-extra") from None


def _write(
    folder: Path, text: str, drawn: Sequence[Picture], names: Sequence[str], missing: Sequence[str]
) -> WrittenReport:
    """Write the page and its pictures; remove those of `names`, all that such a page may have, that it lacks."""
    files = {one.name: folder / f"{one.name}.png" for one in drawn}
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        for one in drawn:
            replace(files[one.name], one.png, sync=False)
        for name in set(names) - files.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
        replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return WrittenReport(folder / INDEX, tuple(files.values()), tuple(missing))
