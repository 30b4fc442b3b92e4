"""What a suite measured, as `benchmarks/results/SUITE.json` with a Markdown table and a plot beside it: one row for
every figure that was asked for, met or not, with the runs it is the median of and the machine it was measured on."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.plots import plot
from benchmarks.row import Row
from hogwild import host

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    described = host.describe_host()
    memory = f"{described['memory_bytes']} bytes"
    return {
        **described,
        "memory": memory,
        "os": platform.platform(),
        "torch": torch.__version__,
        "gpu": None,
        "load": os.getloadavg()[0],
    }


def commit() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=FOLDER, check=False
    ).stdout.strip()


def write(suite: str, rows: Sequence[Row]) -> None:
    """Replaces the suite's JSON file, Markdown table and plot, and prints the table."""
    FOLDER.mkdir(exist_ok=True)
    described = machine()
    content = {
        "suite": suite,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": described,
        "rows": [asdict(row) for row in rows],
    }
    (FOLDER / f"{suite}.json").write_text(json.dumps(content, indent=2) + "\n")
    lines = [
        f"# {suite}",
        "",
        f"{content['date']}, commit {content['commit']}; {described}",
        "",
        "| figure | value | asked | met | runs | baseline | note |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        runs = ", ".join(f"{run:.4g}" for run in row.runs)
        target = "" if row.target is None else f"{'at most' if row.smaller_is_better else 'at least'} {row.target:g}"
        met = {True: "yes", False: "no", None: "reported"}[row.met]
        baseline = "" if row.baseline is None else f"{row.baseline:,.4g}"
        lines.append(
            f"| {row.figure} ({row.unit}) | {row.value:.4g} | {target} | {met} | {runs} | {baseline} | {row.note} |"
        )
    text = "\n".join(lines) + "\n"
    (FOLDER / f"{suite}.md").write_text(text)
    plot(suite, rows, FOLDER / f"{suite}.png")
    print(text)
