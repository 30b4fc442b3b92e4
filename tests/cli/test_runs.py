"""Commands for running jobs, from outside: what they show, and whom they signal."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hogwild import host
from hogwild.cli import main
from hogwild.cli.runs import _signals
from hogwild.monitoring.run_status import RunAttempt, RunStatus, read_status, record_of
from hogwild.storage.run_directory import LIBRARY, RESOLVED, STATUS, RunDir, to_json
from tests.helpers.jobs import RUN_PY, Job, environment
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.terminal import Reader, Terminal
from tests.monitoring.test_run_status import GLANCE, write

ENDLESS = ("train", "--procs", "1", "train.epochs=1000000", "log.every_s=0.05", "log.tensorboard=false")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


def command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main.run(arguments)
    out, err = capsys.readouterr()
    return status, out, err


# ---- runs, status, logs ---------------------------------------------------------------------------------------------


def test_the_list_of_runs_has_their_states_and_best_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "runs" / "one", "succeeded")
    with RunDir.create(folder / "runs" / "two", "job") as run:
        write(run.path, "running")
        status, out, _ = command("runs", capsys=capsys)
        rows = [line.split("  ") for line in out.splitlines()]
        assert status == 0 and [row[0].strip() for row in rows] == ["run", "two", "one"]
        assert [cell.strip() for cell in rows[1] if cell][1:4] == ["running", "33 %", "auc 0.852"]
    _, out, _ = command("runs", "runs", "--json", capsys=capsys)
    found = json.loads(out)["runs"]
    assert [(run["state"], run["is_alive"]) for run in found] == [("lost", False), ("succeeded", False)]


def test_no_folder_of_runs_is_an_error_and_an_empty_one_is_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("runs", capsys=capsys)[:2] == (0, "run  state  progress  best  began\n")
    status, _, err = command("runs", "nowhere", "--json", capsys=capsys)
    assert status == 3 and "run/not-found" in err


def test_the_status_of_a_run_is_one_screen_of_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDir.create(folder / "runs" / "digits", "job") as run:
        write(run.path, "running")
        _, out, _ = command("status", "digits", capsys=capsys)
        for part in ("running, left 0:04:10", "33 %, epoch 1 of 6, update 12,345 of 37,035", "90,854 samples/s"):
            assert part in out
        assert "worker 1    training" in out and "best        auc 0.852, epoch 3 → checkpoints/best" in out
    status, out, _ = command("status", "latest", capsys=capsys)
    assert status == 0 and "digits  lost: its process was killed" in out and "start it again" in out
    (folder / "runs" / "digits" / RESOLVED).touch()
    assert "resume with: hogwild train --resume runs/digits" in command("status", "digits", capsys=capsys)[1]
    _, out, _ = command("status", "digits", "--json", capsys=capsys)
    assert json.loads(out)["is_resumable"] is True and json.loads(out)["state"] == "lost"


def test_logs_are_printed_and_a_missing_one_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "runs" / "one"
    write(run, "succeeded")
    status, _, err = command("logs", "one", capsys=capsys)
    assert status == 3 and "no logs" in err
    (run / "logs").mkdir()
    (run / "logs" / "supervisor.log").write_text("start\nend\n")
    (run / "logs" / "worker-0.log").write_text("hello")
    assert command("logs", "one", capsys=capsys)[:2] == (0, "start\nend\n")
    assert command("logs", "one", "-f", "--worker", "0", capsys=capsys)[:2] == (0, "hello\n")
    status, _, err = command("logs", "one", "--worker", "7", capsys=capsys)
    assert status == 3 and "supervisor.log, worker-0.log" in err and "run/no-log" in err


# ---- stop -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", "run/ended"), ("stopped", "run/ended"), ("running", "run/lost")]
)
@pytest.mark.parametrize("asked", ["stop", "attach"])
def test_a_run_that_does_not_run_is_said_to_have_ended(
    asked: str, state: str, code: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "runs" / "one", state, reason="why")
    status, _, err = command(asked, "one", capsys=capsys)
    assert status == 4 and code in err and "does not run" in err


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.processes
def test_stop_never_signals_a_stranger(
    stranger: subprocess.Popen[bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of the supervisor belongs to another process, which began later; or it is of another boot."""
    ours = RunAttempt.here("command line", 1.0, {})
    reused = replace(ours, pid=stranger.pid, start_ticks=(host.start_ticks(stranger.pid) or 0) - 1)
    same = replace(ours, pid=stranger.pid, start_ticks=host.start_ticks(stranger.pid) or 0)
    for attempt in (reused, replace(same, boot_id="another")):
        with RunDir.create(folder / "runs" / "one", "job") as run:
            (run.path / STATUS).write_text(json.dumps(to_json(record_of(attempt, "running", GLANCE, {}))))
            status, _, err = command("stop", "one", "--now", capsys=capsys)
            assert status == 1 and "run/elsewhere" in err
            run.discard()
    assert stranger.poll() is None and stranger.stdin is not None
    stranger.stdin.close()  # a signal would end it otherwise
    assert stranger.wait(PATIENCE_S) == 1


@pytest.mark.parametrize(
    ("state", "caller", "now", "sent"),
    [
        ("running", "command line", False, [signal.SIGTERM]),
        ("running", "command line", True, [signal.SIGTERM, signal.SIGINT]),
        ("stopping", "command line", True, [signal.SIGTERM]),
        ("building", "command line", True, [signal.SIGTERM]),
        ("running", LIBRARY, False, [signal.SIGINT]),
        ("running", LIBRARY, True, [signal.SIGINT, signal.SIGTERM]),
    ],
)
def test_stop_sends_what_two_ctrl_c_would(state: str, caller: str, now: bool, sent: list[int]) -> None:
    assert _signals(RunStatus(Path(), state, {"caller": caller}, is_begun=True), now=now) == sent


@pytest.mark.processes
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


@pytest.mark.processes
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


@pytest.mark.processes
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


@pytest.mark.processes
def test_the_commands_import_neither_torch_nor_numpy(folder: Path) -> None:
    run = folder / "runs" / "one"
    write(run, "succeeded")
    (run / "logs").mkdir()
    (run / "logs" / "supervisor.log").touch()
    for arguments in (["runs"], ["status", "one"], ["logs", "one"], ["stop", "one"], ["attach", "one"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", RUN_PY, *arguments],
            cwd=folder,
            env=environment("imports", folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode in (0, 4), done.stderr
        imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
        assert "typer" in imported
        assert not imported & {"torch", "numpy", "numba", "workers", "rich"}
