"""Every example of `examples/` in one file runs as its README line says, and beats what it compares itself with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers.jobs import HOME
from tests.helpers.processes import PATIENCE_S

EXAMPLES = HOME / "examples"


def said(name: str, folder: Path) -> str:
    """Return what an example prints as its result."""
    command = [sys.executable, str(EXAMPLES / name)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = re.findall(pattern, text)
    return [float(number) for number in found]


@pytest.mark.processes
def test_two_towers_find_the_next_click(tmp_path: Path) -> None:
    found, by_chance = numbers(r"([\d.]+)%", said("two_towers.py", tmp_path))
    assert found > 2.5 * by_chance


@pytest.mark.processes
def test_a_forecast_is_better_than_the_day_before(tmp_path: Path) -> None:
    error, *simple = numbers(r"(0\.\d+)", said("series_lstm.py", tmp_path))
    assert len(simple) == 2 and error < min(simple)


@pytest.mark.processes
def test_a_transformer_learns_topics(tmp_path: Path) -> None:
    text = said("text_transformer.py", tmp_path)
    assert numbers(r"accuracy ([\d.]+)", text)[0] > 0.95
    assert [line.rpartition(": ")[2] for line in text.splitlines()[-3:]] == ["food", "travel", "work"]


@pytest.mark.processes
def test_fine_tuning_is_better_than_beginning_from_nothing(tmp_path: Path) -> None:
    before, frozen, tuned, from_nothing = numbers(r"([\d.]+)%", said("finetune_resnet.py", tmp_path))
    # Eleven runs of two workers: before 49 to 74 %, frozen 69 to 81, tuned 80 to 87, from nothing 40 to 66.
    assert max(before, from_nothing) + 4 < tuned
    assert before < frozen < tuned


@pytest.mark.processes
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel: classes of its cells go to the workers, a line shows progress, the callback stops the job."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without its outputs"
    NotebookClient(
        notebook, timeout=int(PATIENCE_S), kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    (progress,) = (one["data"]["text/plain"] for one in outputs if one.output_type == "display_data")
    assert "stopped" in progress
    results = [one["data"] for one in outputs if one.output_type == "execute_result"]
    assert "stopped" in results[1]["text/html"] and "auc" in results[2]["text/html"]
    assert results[3]["text/plain"].startswith("tensor([")
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["state"] == "stopped"


def test_the_readme_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    lacking = [
        one.name
        for one in EXAMPLES.iterdir()
        if one.name not in {"README.md", "__pycache__"} and f"({one.name}" not in text
    ]
    assert not lacking
