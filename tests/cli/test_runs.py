"""runs, status, logs, attach and stop on run directories made for the purpose: what they print, how they end, and that
no stranger gets a signal."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.cli import main, runs
from hogwild.cli.runs import _check_cores
from hogwild.config.locate import default_config
from hogwild.errors import ConflictError
from hogwild.storage.files import replace
from tests.helpers.jobs import RUN_PY, Job, environment, read_events
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.terminal import Reader, Terminal
from tests.monitoring.test_run_status import record, write

END = {"reason": "SIGTERM", "exit_status": 75, "doing": "stopped"}


@contextlib.contextmanager
def locked(run: Path) -> Iterator[Path]:
    """The run, as if its job were running."""
    lock = host.lock_file(run / ".lock")
    try:
        yield run
    finally:
        os.close(lock)


# ---- runs and status -------------------------------------------------------------------------------------------------


def test_runs_of_a_folder_with_two_hundred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    for number in range(200):
        state = ("succeeded", "failed", "running", "stopped")[number % 4]
        write(tmp_path / f"job-{number:03}", record(state) | {"began": now - 200 + number})
    (tmp_path / "notes").mkdir()
    (tmp_path / "report.txt").touch()
    with locked(tmp_path / "job-002"):
        assert main.run(["runs", str(tmp_path)]) == 0
        title, *rows = capsys.readouterr().out.splitlines()
        assert main.run(["runs", str(tmp_path), "--json"]) == 0
    assert title.split() == ["run", "state", "progress", "best", "began"]
    assert [row.split()[0] for row in rows] == [f"job-{number:03}" for number in reversed(range(200))]
    assert rows[0].split()[1:6] == ["stopped", "25", "%", "accuracy", "0.975"] and rows[0].endswith(" s ago")
    assert {row.split()[1] for row in rows if "job-002" not in row} == {"succeeded", "failed", "lost", "stopped"}
    assert next(row for row in rows if "job-002" in row).split()[1] == "running"
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [run["state"] for run in listed[:2]] == ["stopped", "lost"] and len(listed) == 200
    assert (listed[1]["is_alive"], listed[1]["is_resumable"]) == (False, True)


def test_runs_of_several_folders_and_with_a_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, tags) in enumerate((("a/one", ["x", "y"]), ("b b/two", ["x"]), ("b b/three", None))):
        write(tmp_path / name, record("succeeded") | {"began": 1e9 + number} | ({} if tags is None else {"tags": tags}))
    folders = [str(tmp_path / "a"), str(tmp_path / "b b"), str(tmp_path / "a")]

    def listed(*options: str) -> list[str]:
        assert main.run(["runs", *folders, *options]) == 0
        return capsys.readouterr().out.splitlines()

    title, *rows = listed()
    assert title.split() == ["run", "state", "progress", "best", "tags", "began"]
    assert [row.split("  ")[0] for row in rows] == [str(tmp_path / name) for name in ("b b/three", "b b/two", "a/one")]
    assert "x, y" in rows[2] and len(listed("--tag", "x")) == 3 and len(listed("--tag", "x", "--tag", "y")) == 2
    gone = str(tmp_path / "gone")
    assert main.run(["runs", gone, *folders]) == 3
    found = capsys.readouterr()
    assert f"no runs in {gone}" in found.err and len(found.out.splitlines()) == 4
    assert main.run(["runs", *folders, gone, "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["runs"]) == 3 and gone in answer["missing"][0]
    assert main.run(["runs", gone]) == 3


def test_a_folder_without_runs_says_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "my runs" / "runs" / "one", record("succeeded"))
    for given, hint in (
        (tmp_path / "my runs", f"its folder runs has 1: hogwild runs '{tmp_path}/my runs/runs'"),
        (tmp_path / "my runs/runs/one", f"it is a run itself: hogwild status '{tmp_path}/my runs/runs/one'"),
        (tmp_path, ""),
    ):
        assert main.run(["runs", str(given)]) == 0
        assert capsys.readouterr().err == (f"no runs in {given}: {hint}\n" if hint else "")


def test_status_is_one_screen_and_its_json_is_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "digits-1", record() | {"began": 1e9})
    with locked(run):
        assert main.run(["status", str(run)]) == 0
        shown = capsys.readouterr().out
        assert main.run(["status", str(run), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
    assert len(shown.splitlines()) <= 24 and max(map(len, shown.splitlines())) < 160
    for words in ("digits-1  running, evaluating, left 0:04:10", "25 %, epoch 1 of 6, update 12,345 of 37,035"):
        assert words in shown
    assert "  server      waiting  90 MiB  pid 76" in shown.splitlines()
    for words in ("accuracy 0.975, epoch 1 → checkpoints/best", "silent 42 s, replaced at 60 s", "restarts 2"):
        assert words in shown
    assert {name: answer[name] for name in record() if name not in ("time", "began", "run_dir")} == {
        name: value for name, value in record().items() if name not in ("time", "began", "run_dir")
    }
    assert answer["is_alive"] is True and answer["run_dir"] == str(run)


def test_what_is_not_there_is_said_with_the_kind_of_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write(tmp_path / "runs" / "one", record("stopped") | END)
    lost = write(tmp_path / "lost", record())
    for arguments, status, code in (
        (["runs", "nowhere"], 3, "run/not-found"),
        (["status", "two"], 3, "run/not-found"),
        (["status", str(tmp_path)], 3, "run/not-a-run"),
        (["logs", str(run), "--worker", "7"], 3, "run/no-log"),
        (["logs", str(run), "-f"], 3, "run/no-log"),
        (["stop", "one"], 4, "run/ended"),
        (["attach", "latest"], 4, "run/ended"),
        (["stop", str(lost), "--now"], 4, "run/lost"),
        (["attach", str(lost)], 4, "run/lost"),
        (["stop"], 2, "usage/arguments"),
    ):
        assert main.run(arguments) == status, arguments
        assert f"code {code}" in capsys.readouterr().err
    assert main.run(["stop", "one", "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error_code"] == "run/ended"
    assert "runs/one does not run: stopped: SIGTERM\nresume with: hogwild train --resume runs/one" in captured.err


def test_every_command_knows_a_run_by_its_name_and_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fail for what such a made-up run lacks, and name the folder that they have found."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("old", "new")):
        run = write(tmp_path / "runs" / name, record("stopped") | END | {"began": 100.0 + number})
        (run / "env.json").write_text("[")
    for given, found in ("old", "old"), ("latest", "new"), ("runs/old", "old"):
        for arguments in (["train", "--resume", given], ["export", given], ["eval", given], ["sample", given]):
            assert main.run(arguments) in (2, 3), arguments
            assert f"runs/{found}" in capsys.readouterr().err
    assert main.run(["report", "latest", "old", "latest"]) == 2
    assert "runs/new" in capsys.readouterr().err


# ---- stop ------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("changes", [{"start_ticks": 1}, {"boot_id": "another"}, {"boot_id": None}], ids=str)
def test_stop_never_signals_a_stranger(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that has got the number of the job's; or has it on another machine that shares the folder."""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        same = {"pid": stranger.pid, "start_ticks": host.start_ticks(stranger.pid), "host": "elsewhere"}
        with locked(write(tmp_path / "run", record() | same | changes)) as run:
            assert main.run(["stop", str(run)]) == main.run(["stop", str(run), "--now"]) == 1
        shown = capsys.readouterr().err
        assert "code run/elsewhere" in shown and f"process {stranger.pid} on elsewhere" in shown
        assert stranger.poll() is None
    finally:
        stranger.kill()
        assert stranger.wait() == -signal.SIGKILL, "and no other signal ended it"


@pytest.mark.processes
def test_a_second_stop_only_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another signal would end the job without its last checkpoint."""
    job = subprocess.Popen(["sleep", "600"])
    ticks = {"pid": job.pid, "start_ticks": host.start_ticks(job.pid)}
    run = write(tmp_path / "run", record("stopping") | ticks)

    def end(*_: object) -> None:
        replace(run / "status.json", json.dumps(record("stopped") | ticks | END).encode(), False)
        job.kill()
        job.wait()

    monkeypatch.setattr(runs.host, "wait_readable", end)
    with locked(run):
        assert main.run(["stop", str(run)]) == 0
    assert job.returncode == -signal.SIGKILL, "and no other signal ended it"


def test_a_run_of_another_user_is_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr(runs.host, "kill_by_pidfd", refuse)
    with locked(write(tmp_path / "run", record())) as run:
        assert main.run(["stop", str(run)]) == 1
    assert "code run/no-permission" in capsys.readouterr().err


@pytest.mark.processes
def test_a_terminal_without_unicode_is_no_error(tmp_path: Path) -> None:
    run = write(tmp_path / "run", record("stopped"))
    given = environment("ascii", tmp_path, {"PYTHONIOENCODING": "latin-1"})
    done = subprocess.run([sys.executable, RUN_PY, "status", str(run)], env=given, capture_output=True, check=True)
    assert b"\\u2192 checkpoints/best" in done.stdout


# ---- logs ------------------------------------------------------------------------------------------------------------


def test_logs_prints_the_supervisors_or_a_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", record("stopped") | END)
    (run / "logs").mkdir()
    (run / "logs" / "supervisor.log").write_text("one\ntwo\n")
    (run / "logs" / "worker-3.log").write_bytes(b"caf\xe9\nno line end")
    assert main.run(["logs", str(run)]) == 0 and capsys.readouterr().out == "one\ntwo\n"
    assert main.run(["logs", str(run), "--worker", "3", "-f"]) == 0, "it has ended, so there is nothing to follow"
    assert capsys.readouterr().out == "caf\ufffd\nno line end\n"
    with locked(write(tmp_path / "live", record())) as live:  # a worker that will never be
        assert main.run(["logs", str(live), "-f", "--worker", "99"]) == 3
        assert "code run/no-log" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch, open("/dev/full", "w") as full:
        patch.setattr("sys.stdout", full)
        assert main.run(["logs", str(run)]) == 1 and "code run/stdout" in capsys.readouterr().err
        with contextlib.suppress(OSError):
            full.close()


def test_following_misses_and_repeats_nothing_that_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size, also half lines and half characters; the file is made, cut and replaced meanwhile."""
    monkeypatch.setattr(runs, "LOOK_S", 0.0005)
    monkeypatch.setattr(runs, "LINES", 7)
    file, is_over = tmp_path / "log", threading.Event()
    found: list[str] = []
    looks: list[None] = []

    def goes_on() -> bool:
        looks.append(None)
        return not is_over.is_set()

    def follow() -> None:
        for lines in runs.follow(tmp_path, ["log"], goes_on):
            found.extend(lines.split("\n"))

    follower = threading.Thread(target=follow)
    follower.start()
    expected = []
    for part, how in enumerate(("made", "cut", "replaced")):
        lines = [f"{how} {number} äöü {'x' * (number % 90)}" for number in range(700)]
        content = "".join(f"{line}\n" for line in lines).encode()
        if how == "cut":
            os.truncate(file, 0)
            seen = len(looks)  # a file that has grown again before the next look is not seen to be another
            wait_for("a look", lambda: len(looks) > seen + 1)  # noqa: B023
        elif how == "replaced":
            replace(file, b"", False)
        for start in range(0, len(content), 37 + part):
            with file.open("ab") as stream:
                stream.write(content[start : start + 37 + part])
        expected += lines
        wait_for(f"the lines of the {how} file", lambda: len(found) >= len(expected))  # noqa: B023
    with file.open("ab") as stream:
        stream.write(b"the last one, torn")
    is_over.set()
    follower.join()
    assert found == [*expected, "the last one, torn"]


# ---- attach ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def attached(run: Path | str, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", Reader]]:
    """`hogwild attach` in a terminal of 80 x 24; its standard output is a pipe."""
    master, slave = os.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "24"], stdin=slave, check=True)
    process = subprocess.Popen(
        [sys.executable, RUN_PY, "attach", str(run)],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=environment("attach", folder, {"TERM": "xterm"}),
        text=True,
    )
    os.close(slave)
    with os.fdopen(master, "rb", buffering=0) as stream:
        try:
            yield process, Reader(stream)
        finally:
            process.kill()
            process.communicate()


def shown(reader: Reader) -> str:
    with contextlib.suppress(AssertionError):  # a sequence is cut off where the reader stands
        return "\n".join(Terminal(80, 24).feed(reader.text).lines())
    return ""


@pytest.mark.whole
@pytest.mark.processes
def test_attach_shows_a_job_started_elsewhere_until_its_end(tmp_path: Path) -> None:
    def now(**changes: Any) -> bytes:
        return json.dumps(record() | {"time": time.time()} | changes).encode()

    run = write(tmp_path / "run", now().decode())
    with locked(run), attached(run, tmp_path) as (process, reader):
        wait_for("the first frame", lambda: "update 12,345 of 37,035" in shown(reader))
        assert "digits  evaluating  0:01:23  left 0:04:10" in shown(reader) and "restarts" in shown(reader)
        replace(run / "status.json", now(updates=20_000), False)
        wait_for("the next", lambda: "update 20,000 of 37,035" in shown(reader))
        assert "update 12,345" not in shown(reader), "in its place"
        replace(run / "status.json", now(state="stopped", updates=20_100, **END), False)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert output.splitlines()[0] == "run  stopped: SIGTERM" and "--resume" in output.splitlines()[-1]
        assert "update 20,100" in shown(reader) and "digits  stopped" in shown(reader)


@pytest.mark.processes
@pytest.mark.parametrize("end", ["Ctrl-C", "killed"])
def test_attach_ends_by_ctrl_c_or_with_a_killed_job(end: str, tmp_path: Path) -> None:
    run = write(tmp_path / "run", record() | {"time": time.time(), "every_s": 1000.0})
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(run))
        process, reader = stack.enter_context(attached(run, tmp_path))
        wait_for("a frame", lambda: "update 12,345" in shown(reader))
        before = (run / "status.json").read_bytes()
        if end == "Ctrl-C":
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            wait_for("the message", lambda: "left; the job goes on. To stop it: hogwild stop" in shown(reader))
        else:
            (run / ".lock").unlink()  # nobody holds the lock of the one that is there now
            (run / ".lock").touch()
            output, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 1 and output.startswith("run  lost: its process was killed")
        assert (run / "status.json").read_bytes() == before


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
