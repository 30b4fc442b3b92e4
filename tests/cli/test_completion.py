"""Completion is typer's: what our command line gives it, and that an answer imports nothing that takes long."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hogwild.cli import main
from hogwild.cli.arguments import COMMANDS
from hogwild.cli.catalog import tasks
from tests.helpers.processes import PATIENCE_S

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sch", ["schema"]),
        ("status ", ["latest", "one"]),
        ("status runs/", []),  # the shell completes paths
        ("export o", ["one"]),
        ("train --run-dir r", []),
        ("train j", []),
        ("ask one ", ["checkpoint", "stacks", "resize"]),
        ("list m", ["models", "metrics"]),
        ("init ", [*tasks()]),
        ("export --fo", ["--format", "--force"]),
    ],
)
def test_what_may_follow_is_offered(
    typed: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(main.COMPLETION, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"hogwild {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    assert main.run([]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(offered)


def test_every_command_is_known_to_the_parser() -> None:
    assert {*COMMANDS} == {*main.command_line().commands}


@pytest.mark.parametrize("name", ["train", "status", "list"])
def test_a_command_that_is_asked_for_is_the_only_one_that_is_built(name: str) -> None:
    whole, alone = (main.command_line(asked).commands for asked in ("", name))
    assert [*alone] == [name]
    assert [one.opts for one in alone[name].params] == [one.opts for one in whole[name].params]


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_printed_script_and_imports_nothing_heavy(here: Path) -> None:
    """The real shell, the printed script, the real command; beside it what that command imported."""
    program = here / "bin" / "hogwild"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -X importtime "{HOME}/run.py" "$@" 2>"{here}/imported"\n')
    program.chmod(0o755)
    asked = "hogwild --show-completion > script; source ./script; COMP_WORDS=(hogwild status o); COMP_CWORD=2\n"
    asked += '_hogwild_completion hogwild; echo "${COMPREPLY[@]}"; complete -p hogwild'
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.splitlines() == ["one", "complete -o default -F _hogwild_completion hogwild"], done.stderr
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in (here / "imported").read_text().splitlines()}
    assert "typer" in imported and not imported & {"torch", "numpy", "pandas"}
