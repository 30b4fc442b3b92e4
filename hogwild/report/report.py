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
from hogwild.report.panels import RunCurves, curves, page_data
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
MISSING = "What is not in this report"
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


@dataclass(frozen=True, slots=True)
class _Page:
    """The content of a page, downwards: tables, charts (with the timeline the table of each worker), tables, notes."""

    title: str
    head: str
    above: Sequence[tables.TableRows]
    found: RunCurves
    timeline: dict[str, Any] | None
    each_worker: tables.TableRows | None
    below: Sequence[tables.TableRows]
    missing: Sequence[str]

    def html(self) -> str:
        data = {**page_data(self.found), "timeline": self.timeline}
        groups = {panel.group for panel in self.found.panels} | ({"workers"} if self.timeline is not None else set())
        groups |= {"staleness"} if any(run["staleness"] for run in data["runs"]) else set()
        shown = {name: words for name, words in GROUPS.items() if name in groups}
        titles = [*(one.title for one in self.above), *shown.values(), *(one.title for one in self.below)]
        parts = [self.head, contents([*titles, *([MISSING] if self.missing else [])]), *map(table, self.above)]
        parts += [CONTROLS] if shown else []
        parts += [f'<p class="note">{escape(THINNED)}</p>'] if self.found.is_thinned else []
        for name, words in shown.items():
            parts.append(charts(words, name))
            parts += [table(self.each_worker)] if name == "workers" and self.each_worker is not None else []
        parts += [*map(table, self.below), *([notes(MISSING, self.missing)] if self.missing else [])]
        return page(self.title, parts, data if shown else None)


def write_report(path: Path, out: Path | None = None) -> WrittenReport:
    """Write the page of one run to RUN/report or to `out`. Raises NotFoundError if there is no run, RunDirError if it
    cannot be written."""
    run = read_run(path)
    places = [str(run.path), f"Page made {moment(run.read_at)} from the files of the run directory."]
    timeline = page_timeline(run)
    content = _Page(
        title=f"{run.name}: a run of hogwild",
        head=header(str(run.summary.get("name") or run.name), places, tables.headline(run)),
        above=(),
        found=curves([run], [run.name]),
        timeline=timeline,
        each_worker=tables.workers(run) if timeline is not None else None,
        below=[*tables.tables(run)],
        missing=tables.missing(run),
    )
    written = _write(out if out is not None else run.path / "report", content)
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
    *above, machine = tables.differences(runs)
    content = _Page(
        title=f"{len(runs)} runs of hogwild",
        head=header(", ".join(names), [str(run.path) for run in runs]),
        above=above,
        found=curves(runs, names),
        timeline=None,
        each_worker=None,
        below=[machine],
        missing=[f"{name}: {line}" for name, run in zip(names, runs, strict=True) for line in tables.missing(run)],
    )
    folders = "-".join(re.sub(r"[^\w.+-]+", "_", run.name) for run in runs)
    return _write(out if out is not None else runs[0].path / "report" / f"report-{folders}"[:LONGEST_NAME], content)


def _write(folder: Path, content: _Page) -> WrittenReport:
    """Write the page and, with matplotlib, its pictures; remove those of an earlier report that it lacks."""
    text = content.html()
    pictures, why = _pictures(content.found)
    files = {name: folder / f"{name}.png" for name in pictures}
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, png in pictures.items():
            replace(files[name], png, sync=False)
        for name in set(PICTURES) - files.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
        replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return WrittenReport(folder / INDEX, tuple(files.values()), tuple(content.missing), why)


def _pictures(found: RunCurves) -> tuple[dict[str, bytes], str]:
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
