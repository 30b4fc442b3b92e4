"""Writing of a report, of one run or of several, to disk. It takes no lock: the job has it.

The page needs no package beyond the core's. With matplotlib there are also pictures (PNG), for papers. Every file is
written under a temporary name and renamed, as everywhere in a run directory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.errors import UsageError
from hogwild.formatting import moment
from hogwild.monitoring import tensorboard
from hogwild.report import tables
from hogwild.report.page import CONTROLS, charts, contents, header, notes, page, table
from hogwild.report.panels import Curves, curves, page_data
from hogwild.report.run_data import Run, read_run
from hogwild.report.timeline import page_timeline
from hogwild.storage.files import replace
from hogwild.storage.records import explained

INDEX = "index.html"
INSTALL = "pip install 'hogwild[report]'"
LONGEST_NAME = 120  # of a comparison's folder: a file system allows 255 bytes
GROUPS = {
    "learning": "Learning",
    "throughput": "Speed",
    "workers": "Workers",
    "staleness": "Staleness",
    "resources": "Memory and processor",
}
# All that a report, also of an older version, may have written beside its page.
PICTURES = (
    *("learning-time", "learning-samples", "learning-updates", "throughput", "timeline", "staleness", "resources"),
    "memory",
)
THINNED = (
    "There are more records than a page needs: curves show the lowest and the highest of every short stretch, "
    "smoothed curves the means of all records. metrics.jsonl has every record."
)


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The report's paths: the page, and its pictures beside it. `missing`: what it does not contain, and why;
    `no_pictures`: why there are no pictures at all, or ""."""

    index: Path
    pictures: tuple[Path, ...]
    missing: tuple[str, ...]
    no_pictures: str


def write_report(path: Path, out: Path | None = None) -> WrittenReport:
    """Write the page of one run to RUN/report or to `out`. Raises NotFoundError if there is no run, RunDirError if it
    cannot be written."""
    run = read_run(path)
    found = curves([run], [run.name])
    places = [str(run.path), f"Page made {moment(run.read_at)} from the files of the run directory."]
    head = header(str(run.summary.get("name") or run.name), places, tables.headline(run))
    timeline = page_timeline(run)
    written = _write(
        out if out is not None else run.path / "report",
        f"{run.name}: a run of hogwild",
        head,
        found,
        timeline,
        tables.missing(run),
        [*tables.tables(run)],
        each_worker=tables.workers(run) if timeline is not None else None,
    )
    _to_tensorboard(run, written.pictures)
    return written


def write_comparison(paths: Sequence[Path], out: Path | None = None) -> WrittenReport:
    """Write the page of several runs to FIRST/report/report-NAME1-NAME2 or to `out`. Raises as `write_report`, and
    UsageError for the same run twice."""
    resolved = [path.resolve() for path in paths]
    twice = next((path for place, path in enumerate(resolved) if path in resolved[:place]), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice; name different runs to compare", code="usage/contradiction")
    runs = [read_run(path) for path in paths]
    names = tables.labels(runs)
    missing = [f"{name}: {line}" for name, run in zip(names, runs, strict=True) for line in tables.missing(run)]
    folders = "-".join(re.sub(r"[^\w.+-]+", "_", run.name) for run in runs)
    beside = runs[0].path / "report" / f"report-{folders}"[:LONGEST_NAME]
    return _write(
        out if out is not None else beside,
        f"{len(runs)} runs of hogwild",
        header(" and ".join(names), [str(run.path) for run in runs]),
        curves(runs, names),
        None,
        missing,
        [*tables.differences(runs)],
        above=2,
    )


def _write(
    folder: Path,
    title: str,
    head: str,
    found: Curves,
    timeline: dict[str, Any] | None,
    missing: Sequence[str],
    rows: Sequence[tables.TableRows],
    *,
    above: int = 0,
    each_worker: tables.TableRows | None = None,
) -> WrittenReport:
    """Write the page and, with matplotlib, its pictures; remove those of an earlier report that it lacks. The first
    `above` tables stand above the charts."""
    data = {**page_data(found), "timeline": timeline}
    groups = {panel.group for panel in found.panels} | ({"workers"} if timeline is not None else set())
    groups |= {"staleness"} if any(run["staleness"] for run in data["runs"]) else set()
    sections = [(words, name) for name, words in GROUPS.items() if name in groups]
    notes_title = "What is not in this report"
    titles = [*(one.title for one in rows[:above]), *(words for words, _ in sections)]
    parts = [
        head,
        contents([*titles, *(one.title for one in rows[above:]), *([notes_title] if missing else [])]),
        *map(table, rows[:above]),
        *([CONTROLS] if sections else []),
        *([f'<p class="note">{escape(THINNED)}</p>'] if found.is_thinned else []),
    ]
    for words, name in sections:
        parts.append(charts(words, name))
        parts += [table(each_worker)] if name == "workers" and each_worker is not None else []
    parts += [*map(table, rows[above:]), *([notes(notes_title, missing)] if missing else [])]
    text = page(title, parts, data if sections else None)
    pictures, why = _pictures(found)
    files = {name: folder / f"{name}.png" for name in pictures}
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, png in pictures.items():
            replace(files[name], png, sync=False)
        for name in set(PICTURES) - files.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
        replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return WrittenReport(folder / INDEX, tuple(files.values()), tuple(missing), why)


def _pictures(found: Curves) -> tuple[dict[str, bytes], str]:
    """Return the PNGs by name, and why there are none."""
    try:
        from hogwild.report.pictures import pictures
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        return {}, f"no pictures (PNG): matplotlib is not installed: {INSTALL}"
    return pictures(found), ""


def _to_tensorboard(run: Run, drawn: Sequence[Path]) -> None:
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
        figures = {one.stem: one.read_bytes() for one in drawn}
        tensorboard.add_figures(folder, figures, samples=at, time_s=run.read_at)
