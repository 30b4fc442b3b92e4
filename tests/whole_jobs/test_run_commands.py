"""stop, attach and logs -f on jobs that really run (tests/cli/test_runs.py has those on folders made for it)."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hogwild.cli import main
from hogwild.monitoring.run_status import read_status
from tests.helpers.jobs import RUN_PY, Job, environment
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.terminal import Reader, Terminal

ENDLESS = ("train", "--procs", "1", "train.epochs=1000000", "log.every_s=0.05", "log.tensorboard=false")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.mark.parametrize(("options", "end", "exit_status"), [((), "stopped", 75), (("--now",), "cancelled", 130)])
def test_stop_ends_a_job_and_says_how_it_goes_on(
    options: tuple[str, ...],
    end: str,
    exit_status: int,
    folder: Path,
    start_job: Callable[..., Job],
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = start_job(folder, *ENDLESS)
    job.wait_for_updates(20)
    assert main.run(["stop", str(job.run_dir), *options]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(f"{end}: ") and f"resume with: hogwild train --resume {job.run_dir}" in out
    ended = job.wait()
    assert ended.status in (exit_status, 143 if options else 75) and not ended.left_behind
    found = read_status(job.run_dir)
    assert (found.state, found.record["exit_status"]) == (end, ended.status)
    assert found.record["updates"] == ended.summary["updates"] and found.record["best"] == ended.summary["best"]


def test_a_job_that_is_being_built_is_stopped_without_a_trace(
    folder: Path, start_job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "blocking.py").write_text(
        "import time\nfrom pathlib import Path\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        Path('reached').touch()\n"
        "        time.sleep(600)\n"
    )
    (folder / "job.yaml").write_text(
        "version: 1\nmodel: {class_path: blocking.Net}\ndata: {train: {class_path: hogwild.data.Digits}}\n"
        "log: {every_s: 0.05}\n"
    )
    job = start_job(folder, "train", "job.yaml", "--procs", "1")
    wait_for("the constructor", (folder / "reached").exists)
    found = read_status(job.run_dir)
    assert (found.state, found.record["doing"]) == ("building", "building model and data")
    assert main.run(["stop", str(job.run_dir)]) == 0
    assert "ended before training began" in capfd.readouterr().err
    assert job.process.wait(PATIENCE_S) == 143 and not job.run_dir.exists()
    said = job.stderr().splitlines()
    assert said[0] == "hogwild 0.1.0: job, 1 worker; importing torch" and said[-1] == "cancelled; nothing was started"


# ---- attach, logs -f ------------------------------------------------------------------------------------------------


def test_a_job_is_watched_from_another_terminal_until_its_end(folder: Path, start_job: Callable[..., Job]) -> None:
    """Once left by Ctrl-C, which leaves the job alone; once until the job ends. `logs -f` ends with it, too."""
    job = start_job(folder, *ENDLESS)
    job.wait_for_updates(20)

    terminals = contextlib.ExitStack()

    def begin(*arguments: str) -> tuple[subprocess.Popen[bytes], Reader]:
        master, slave = os.openpty()
        process = subprocess.Popen(
            [sys.executable, RUN_PY, *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(job.mark, folder, {"TERM": "xterm"}),
        )
        os.close(slave)
        return process, Reader(terminals.enter_context(os.fdopen(master, "rb", buffering=0)))

    with terminals:
        _watch(job, begin)


def _watch(job: Job, begin: Callable[..., tuple[subprocess.Popen[bytes], Reader]]) -> None:
    first, reader = begin("attach", "run")
    wait_for("a picture", lambda: "training" in reader.text and "the job goes on" in reader.text)
    first.send_signal(signal.SIGINT)
    assert first.wait(PATIENCE_S) == 0
    wait_for("its words", lambda: "left; the job goes on" in reader.text)
    assert job.process.poll() is None
    second, seen = begin("attach", "run")
    following, lines = begin("logs", "run", "-f")
    wait_for("both", lambda: "training" in seen.text and "ready worker=0" in lines.text)
    job.send(signal.SIGINT)
    assert (job.wait().status, second.wait(PATIENCE_S), following.wait(PATIENCE_S)) == (75, 0, 0)
    wait_for("the end", lambda: "resume with" in seen.text and "end state=stopped" in lines.text)
    shown = Terminal().feed(seen.text).lines()
    assert any(line.startswith("digits  stopped") for line in shown), "the picture that stays"
    assert [line for line in shown if line][-1].strip() == "resume with: hogwild train --resume run"
