"""Real jobs, watched and stopped by other commands through their run directories alone (tests/cli/test_runs.py: the
commands on folders made for it)."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli import main
from hogwild.monitoring.run_status import read_status
from hogwild.version import __version__
from tests.helpers.jobs import JOBS, RUN_PY, Job, environment
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.terminal import Reader, Terminal

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
ENDLESS = ("train.epochs=100000", "checkpoint.every_s=null")
DIGITS = ("train", "--procs", "1", "train.epochs=1000000", "log.every_s=0.05", "log.tensorboard=false")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one for runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


def counting(diary: Path, *more: str) -> list[str]:
    diary.mkdir()
    return [COUNTING, f"model.init_args.diary={diary}", *more]


@contextmanager
def watched(run: Path) -> Iterator[list[dict[str, Any]]]:
    """Every status.json of the run that differs from the one before; reading one that is torn fails."""
    seen: list[dict[str, Any]] = []
    failures: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        is_last, last = False, b""
        while not is_last:
            is_last = is_over.wait(0.001)  # asked first: what was written before is still read
            with suppress(FileNotFoundError):
                content = (run / "status.json").read_bytes()
                if content != last:
                    last = content
                    try:
                        seen.append(json.loads(content))
                    except ValueError:
                        failures.append(repr(content))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
    assert not failures


def test_a_stop_from_elsewhere_waits_for_the_checkpoint_and_the_run_goes_on_at_once(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """Every state in its order; the lock is free when `stop` returns."""
    diary = tmp_path / "diary"
    arguments = counting(diary, "model.class_path=gated.Gated", *ENDLESS)
    with watched(tmp_path / "run") as seen:
        job = start_job(tmp_path, *arguments)
        job.wait_for_updates(20)
        (diary / "gates").touch()
        stop = start_job(tmp_path / "stop", "stop", str(job.run_dir), run_dir=job.run_dir)
        wait_for("the last checkpoint", (diary / "saving-1").exists)
        wait_for("stopping", lambda: seen[-1]["state"] == "stopping")
        assert stop.process.poll() is None, "it waits"
        (diary / "gates").unlink()
        (diary / "saved-1").touch()
        assert stop.process.wait() == 0
        resumed = start_job(tmp_path / "again", "--resume", str(job.run_dir), "train.epochs=1", run_dir=job.run_dir)
        assert resumed.process.wait() == 0, resumed.stderr()
        wait_for("its end", lambda: seen[-1]["state"] == "succeeded")
    states = [(number, state) for (number, state), _ in itertools.groupby((r["attempt"], r["state"]) for r in seen)]
    assert states[:5] == [*((1, state) for state in ("building", "running", "stopping", "stopped")), (2, "building")]
    stopped = next(record for record in seen if record["state"] == "stopped")
    assert (stopped["reason"], stopped["exit_status"], stopped["pid"]) == ("SIGTERM", 75, job.process.pid)
    lines = stop.stdout().splitlines()
    assert lines[0] == "run  stopped: SIGTERM" and lines[-1] == f"  resume with: hogwild train --resume {job.run_dir}"
    again = start_job(tmp_path / "stop-again", "stop", str(job.run_dir), run_dir=job.run_dir)
    assert again.process.wait() == 4 and "code run/ended" in again.stderr()


def test_now_ends_a_job_at_once_that_is_stopping(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    diary = tmp_path / "diary"
    job = start_job(tmp_path, *counting(diary, "model.class_path=gated.Gated", *ENDLESS))
    job.wait_for_updates(20)
    (diary / "gates").touch()
    job.send(signal.SIGTERM)
    wait_for("the last checkpoint", (diary / "saving-1").exists)
    wait_for("stopping", lambda: job.status()["state"] == "stopping")
    stop = start_job(tmp_path / "stop", "stop", str(job.run_dir), "--now", "--json", run_dir=job.run_dir)
    assert stop.process.wait() == 0, stop.stderr()
    answer = json.loads(stop.stdout())
    assert (answer["state"], answer["is_resumable"], answer["error"]) == ("cancelled", True, None)
    assert job.process.wait() == answer["exit_status"] and answer["exit_status"] > 128
    assert not job.left_behind()


def test_a_supervisor_that_stands_still_is_named_late_not_lost(
    tmp_path: Path, start_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hogwild.monitoring.run_status.LATE_S", 0.2)
    job = start_job(tmp_path, *counting(tmp_path / "diary", *ENDLESS))
    job.wait_for_updates(20)
    os.kill(job.process.pid, signal.SIGSTOP)
    wait_for("a late record", lambda: read_status(job.run_dir).late_s)
    found = read_status(job.run_dir)
    assert found.is_alive and found.snapshot.samples_per_s == 0.0 and "silent for" in found.snapshot.state
    os.kill(job.process.pid, signal.SIGCONT)
    wait_for("the next record", lambda: read_status(job.run_dir).late_s is None)


def test_logs_follow_a_job_to_its_end(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    diary = tmp_path / "diary"
    job = start_job(tmp_path, *counting(diary, "model.init_args.pace_s=0.05"))
    job.wait_for_event("ready", 2)
    logs = start_job(tmp_path / "logs", "logs", str(job.run_dir), "-f", run_dir=job.run_dir)
    left = start_job(tmp_path / "left", "logs", str(job.run_dir), "-f", run_dir=job.run_dir)
    wait_for("its first lines", lambda: "spawn" in logs.stdout() and "spawn" in left.stdout())
    left.send(signal.SIGINT)
    assert (left.process.wait(), left.stderr()) == (0, "")
    assert job.process.poll() is None
    (diary / "hurry").touch()
    assert (job.process.wait(), logs.process.wait()) == (0, 0)
    assert logs.stdout() == (job.run_dir / "logs" / "supervisor.log").read_text()
    assert "end state=succeeded" in logs.stdout()


@pytest.mark.whole
@pytest.mark.parametrize(("options", "end", "exit_status"), [((), "stopped", 75), (("--now",), "cancelled", 130)])
def test_stop_ends_a_job_and_says_how_it_goes_on(
    options: tuple[str, ...],
    end: str,
    exit_status: int,
    folder: Path,
    start_job: Callable[..., Job],
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = start_job(folder, *DIGITS)
    job.wait_for_updates(20)
    assert main.run(["stop", str(job.run_dir), *options]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(f"run  {end}: ") and f"resume with: hogwild train --resume {job.run_dir}" in out
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
    wait_for("its status", lambda: read_status(job.run_dir).record["doing"] == "building model and data")
    assert read_status(job.run_dir).state == "building"
    assert main.run(["stop", str(job.run_dir)]) == 0
    assert "ended before training began" in capfd.readouterr().err
    assert job.process.wait(PATIENCE_S) == 143 and not job.run_dir.exists()
    said = job.stderr().splitlines()
    assert (
        said[0] == f"hogwild {__version__}: job, 1 worker; importing torch"
        and said[-1] == "cancelled; nothing was started"
    )


# ---- attach, logs -f ------------------------------------------------------------------------------------------------


def test_a_job_is_watched_from_another_terminal_until_its_end(folder: Path, start_job: Callable[..., Job]) -> None:
    """Once left by Ctrl-C, which leaves the job alone; once until the job ends. `logs -f` ends with it, too."""
    job = start_job(folder, *DIGITS)
    job.wait_for_updates(20)

    terminals = ExitStack()

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
