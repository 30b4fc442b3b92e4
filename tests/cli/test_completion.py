"""Completion: what may be typed next, as the shells ask for it, without importing what takes long."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from hogwild.cli import completion, main
from hogwild.cli.arguments import COMMANDS
from hogwild.cli.completion import VARIABLE, candidates
from tests.helpers.processes import PATIENCE_S

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return tmp_path


def words(*typed: str) -> list[str]:
    return [word for word, _ in candidates([*typed[:-1]], typed[-1], typer.main.get_command(main.app))]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sch"], ["schema"]),
        (["j"], ["job.yaml"]),
        (["check", "j"], ["job.yaml"]),
        (["train", "n"], ["name="]),  # no job file ends in .txt
        (["run"], ["runs", "runs/"]),
        (["status", ""], ["latest", "one", "runs/"]),
        (["runs/"], ["runs/one/"]),
        (["export", ""], ["job.yaml", "notes.txt", "runs/"]),
        (["train", "--run-dir", "r"], ["runs/"]),
        (["export", "--format", ""], ["safetensors", "state_dict", "torch-export", "onnx", "word2vec"]),
        (["export", "--fo"], ["--format", "--force"]),
        (["job.yaml", "--no-p"], ["--no-progress"]),
        (["--resu"], ["--resume"]),
        (["init", "csv"], ["csv-regression", "csv-classification"]),
        (["list", "m"], ["models", "metrics"]),
        (["completion", "z"], ["zsh"]),
        (["doctor", ""], []),
        (["train", "optimi"], ["optimizer."]),
        (["train", "job.yaml", "train.pro"], ["train.procs=", "train.procs_max="]),
        (["model.init"], ["model.init_args.", "model.init_from."]),
        (["model.init_args."], []),  # keys that only the model knows
        (["job.yaml", "train.exchange="], ["train.exchange=auto", "train.exchange=direct", "train.exchange=delta"]),
        (["train.pin=t"], ["train.pin=true"]),
        (["nowhere/"], []),
    ],
)
def test_what_may_follow_is_offered(typed: list[str], offered: list[str]) -> None:
    assert words(*typed) == offered


def test_every_command_is_offered_and_known() -> None:
    assert {*COMMANDS} <= {*words("")}
    assert {*COMMANDS} == {*typer.main.get_command(main.app).commands}  # type: ignore[attr-defined]


def test_every_field_of_a_job_can_be_reached() -> None:
    reached: set[str] = set()
    open_ = {""}
    while open_ and len(reached) < 1000:
        found = {*words("train", open_.pop())} - reached
        reached |= found
        open_ |= {word for word in found if word.endswith(".")}
    assert {"train.epochs=", "data.train.class_path=", "evaluate.every_updates=", "lr_schedule.name="} <= reached
    assert len(reached) < 1000, "every word leads further, and none to itself"


@pytest.mark.parametrize(("shell", "printed"), [("bash", "direct"), ("fish", "train.exchange=direct\t")])
def test_each_shell_is_answered_in_its_way(
    shell: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """bash cuts words at = and replaces what is after it; the others replace the whole word."""
    monkeypatch.setenv(VARIABLE, shell)
    assert main.run(["train", "train.exchange=di"]) == 0
    assert capsys.readouterr().out == f"{printed}\n"


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "tcsh"]) == 2
    assert "must be one of bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_printed_script_and_imports_nothing_heavy(here: Path) -> None:
    """The real shell, the real script, the real command; beside it what that command imported."""
    program = here / "bin" / "hogwild"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -X importtime "{HOME}/run.py" "$@" 2>"{here}/imported"\n')
    program.chmod(0o755)
    (here / "script").write_text((completion.SCRIPTS / "hogwild.bash").read_text())
    asked = 'source ./script; COMP_LINE="hogwild train job.yaml train.exch"; COMP_POINT=${#COMP_LINE}\n'
    asked += (
        'compopt() { echo compopt "$@"; }; _hogwild_completion hogwild; echo "${COMPREPLY[@]}"; complete -p hogwild'
    )
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    expected = ["compopt -o nospace", "train.exchange=", "complete -F _hogwild_completion hogwild"]
    assert done.stdout.splitlines() == expected, done.stderr
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in (here / "imported").read_text().splitlines()}
    assert "typer" in imported and not imported & {"torch", "numpy", "pydantic", "rich"}
