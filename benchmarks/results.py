"""The measurements of a suite, as `benchmarks/results/SUITE.json` with a Markdown table and a plot beside it: one row
for every figure that was asked for, met or not, with the runs it is the median of and the machine it was measured
on."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.row import Row
from hogwild import host
from hogwild.version import __version__

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """cpu, cores (and how many of them, of which kind, we may use), memory, os, python, torch, gpu, and its load."""
    described = host.describe_host()
    return {
        **described,
        "memory": f"{int(str(described['memory_bytes'])) / 2**30:.1f} GiB",
        "os": platform.platform(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": round(os.getloadavg()[0], 2),
    }


class NotCommitted(SystemExit):
    """The measured code is in no commit, so nobody could measure it again."""


def changed() -> list[str]:
    """The tracked files that differ from the commit. Results do not count: a suite writes them while it measures."""
    return _git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude){FOLDER}").splitlines()


def commit() -> str:
    """The commit that is measured, or the version where there is no git."""
    found = _git("describe", "--always")
    return found + "-dirty" * bool(changed()) if found else f"hogwild {__version__}"


def begin() -> dict[str, Any]:
    """Return the machine as it is before the suite keeps it busy. Raises NotCommitted."""
    if files := changed():
        raise NotCommitted(f"results belong to a commit; commit or stash first: {', '.join(files)}")
    return machine()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=FOLDER.parent, check=False)
    return done.stdout.rstrip()


def update(
    suite: str,
    rows: Sequence[Row],
    described: dict[str, Any] | None = None,
    folder: Path = FOLDER,
    more: Mapping[str, Any] | None = None,
    *,
    is_quiet: bool = False,
) -> None:
    """For a suite that several programs measure: replaces the rows of the same figures where they stand, adds the new
    ones at the end, and keeps all others, and whatever else is in the JSON file. `more`: what is to stand there beside
    the rows."""
    file = folder / f"{suite}.json"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    fresh = {row.figure: row for row in rows}
    before = [Row.read(row) for row in kept.pop("rows", [])]
    merged = [fresh.pop(row.figure, row) for row in before] + list(fresh.values())
    write(suite, merged, described, folder, {**kept, **(more or {})}, is_quiet=is_quiet)


def write(
    suite: str,
    rows: Sequence[Row],
    described: dict[str, Any] | None = None,
    folder: Path = FOLDER,
    more: Mapping[str, Any] | None = None,
    *,
    is_quiet: bool = False,
) -> None:
    """Replaces the suite's JSON file, Markdown table and plot, and prints the table, unless `is_quiet`. `described`:
    the machine as it was before the suite kept it busy; `more`: what else is to stand in the JSON file."""
    from benchmarks.plots import plot

    folder.mkdir(exist_ok=True)
    content = {
        "suite": suite,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": described or machine(),
        "rows": [asdict(row) for row in rows],
    }
    content |= {name: value for name, value in (more or {}).items() if name not in content}
    (folder / f"{suite}.json").write_text(json.dumps(content, indent=2) + "\n")
    head = f"# {suite}\n\n{content['date']}, commit {content['commit']}; {content['machine']}\n\n"
    text = head + table(rows)
    (folder / f"{suite}.md").write_text(text)
    plot(suite, rows, folder / f"{suite}.png")
    if not is_quiet:
        print(text)


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    lines = ["| figure | value | asked | met | runs | baseline | note |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def read_rows(suite: str, folder: Path = FOLDER) -> dict[str, Row]:
    """The rows that were written down, by figure."""
    kept = json.loads((folder / f"{suite}.json").read_text())["rows"]
    return {row["figure"]: Row.read(row) for row in kept}


def _cells(row: Row) -> list[str]:
    asked = "" if row.target is None else f"{'at most' if row.smaller_is_better else 'at least'} {row.target:g}"
    met = {True: "yes", False: "no", None: "reported" if row.target is None else "void"}[row.met]
    return [
        f"{row.figure} ({row.unit})" if row.unit else row.figure,
        "" if row.value is None else f"{row.value:.4g}",
        asked,
        met,
        ", ".join(f"{run:.4g}" for run in row.runs),
        "" if row.baseline is None else f"{row.baseline:,.4g}",
        row.note.replace("|", "/").replace("\n", " "),
    ]
