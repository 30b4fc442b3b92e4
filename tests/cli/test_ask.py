"""`hogwild ask`: requests to a live job, their answers, and what is told if there is none."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hogwild.cli import main
from hogwild.cli.runs import _check_cores
from hogwild.config.locate import default_config
from hogwild.errors import ConflictError
from tests.helpers.jobs import Job, read_events
from tests.helpers.processes import wait_for

LONG = (str(default_config("digits")), "train.procs=0", "train.epochs=100000")


@pytest.mark.whole
@pytest.mark.processes
def test_a_live_job_answers_and_one_that_has_ended_does_not(
    tmp_path: Path, start_job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start_job(tmp_path / "job", *LONG)
    job.wait_for_updates(1)
    run = str(job.run_dir)
    assert main.run(["ask", run, "checkpoint", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == "done" and (job.run_dir / "checkpoints" / told["checkpoint"] / "manifest.json").exists()
    assert main.run(["ask", run, "stacks"]) == 0
    assert f"written to {job.run_dir / 'stacks'}" in capsys.readouterr().out
    stack = job.run_dir / "stacks" / "supervisor.txt"
    wait_for("its stack", lambda: stack.exists() and "inline.py" in stack.read_text())
    assert main.run(["ask", run, "resize", "--procs", "2"]) == 1
    assert capsys.readouterr().out == "resize: train.procs: 0 has no workers\n"
    assert main.run(["stop", run]) == 0
    assert main.run(["ask", run, "stacks"]) == 4
    assert "does not run" in capsys.readouterr().err
    assert [event["ask"] for event in read_events(job.run_dir, "request")] == ["checkpoint", "stacks", "resize"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sing"], "ask sing: must be checkpoint or stacks or resize"),
        (["resize"], "resize, which needs one of them"),
        (["stacks", "--procs", "2"], "--procs and --cores belong to resize"),
        (["resize", "--cores", "0-"], "--cores 0-: must be numbers and ranges, such as 0-3,8"),
    ],
)
def test_a_wrong_request_is_not_sent(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status.json").write_text("{}")
    assert main.run(["ask", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "requests").exists()


def test_cores_that_the_service_moves_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"elastic": {"min": 1, "max": 2}}')
    with pytest.raises(ConflictError, match="give --procs"):
        _check_cores(tmp_path / "run", os.getpid(), [0])
