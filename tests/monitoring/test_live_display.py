"""The picture of a running job: its lines fit and are aligned at every width, the terminal below it stays a terminal,
and one that nobody reads holds up nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hogwild.formatting import clock, short_number
from hogwild.monitoring import terminal_writer as screen_module
from hogwild.monitoring.live_display import COLUMNS, Display, blocks, columns_for, shown_workers
from hogwild.monitoring.run_status import JobSnapshot, ServerSnapshot, WorkerSnapshot
from hogwild.monitoring.terminal_writer import Look, Screen, look_for
from tests.helpers.jobs import RUN_PY, environment, read_events
from tests.helpers.processes import PATIENCE_S, marked, state_of, wait_for
from tests.helpers.terminal import Reader, Terminal


def worker(number: int, **changes: object) -> WorkerSnapshot:
    made = WorkerSnapshot(
        worker=number,
        state="training",
        phase="working",
        pid=4000 + number,
        updates=18_000 + number,
        samples_per_s=43_643.4,
        share=0.48,
        phases={"working": 0.97, "waiting": 0.02, "parked": 0.01},
        stale_p50=3,
        stale_p99=42,
        cpu=0.987,
        pss_bytes=185_400_000,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def snapshot(workers: int = 2, **changes: object) -> JobSnapshot:
    made = JobSnapshot(
        name="digits",
        run_dir="/data/runs/20260101-120000-digits",
        state="running",
        wall_s=83.2,
        left_s=250.0,
        epoch=1,
        epochs=6,
        position=1.614,
        updates=12_345,
        planned_updates=37_035,
        samples=197_520,
        progress=1 / 3,
        samples_per_s=90_854.0,
        loss=0.12345,
        lr=0.05,
        metrics={"loss": 0.2345, "accuracy": 0.98125},
        evaluated_at=6_172,
        stale_p50=3,
        stale_p99=42,
        pss_bytes=577_000_000,
        workers=tuple(worker(k) for k in range(workers)),
        news=("12:00:01  worker 0  ready", "12:01:02  checkpoint  update-000012000"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def plain(
    made: JobSnapshot, width: int, height: int = 24, display: Display | None = None, **options: bool
) -> list[str]:
    display = display or Display()
    display.update(made)
    return [line.plain for line in display.lines(made, width, height, **options)]


def test_eighty_columns_hold_everything_that_matters() -> None:
    assert plain(snapshot(), 79) == [
        "digits  running  0:01:23  left 0:04:10        /data/runs/20260101-120000-digits",
        "job    ━━━━━━━━━━━━━────────────────────────────  33 %  update 12,345 of 37,035",
        "epoch  ━━━━━━━━━━━━━━━━━━━━━━━━━────────────────  61 %  2 of 6",
        "loss 0.1235 ▁   val loss 0.2345 ▁   val accuracy 0.9812 ▁",
        "samples/s 90,854 ▁   lr 0.05   staleness 3/42   memory 550 MiB",
        "worker  state       samples/s  share   work   wait  restarts     CPU      PSS",
        "     0  training       43,643   48 %   97 %    2 %         -    99 %  177 MiB",
        "     1  training       43,643   48 %   97 %    2 %         -    99 %  177 MiB",
        "12:00:01  worker 0  ready",
        "12:01:02  checkpoint  update-000012000",
    ]


@pytest.mark.parametrize("width", [12, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [3, 10, 24, 60])
@pytest.mark.parametrize("workers", [0, 1, 2, 64])
def test_nothing_is_wider_or_higher_than_the_terminal(width: int, height: int, workers: int) -> None:
    long = {"name": "n" * 90, "run_dir": "/日本語/" + "x" * 300, "news": ("é\x1b[2J" * 90,) * 8, "restarts": 3}
    for made in (snapshot(workers), snapshot(workers, **long)):
        frame = Display().frame(made, width, height)
        assert len(frame) <= height - 1 and all(columns < width for _, columns in frame)
        shown = Terminal(width, height).feed("".join(f"{line}\n" for line, _ in frame)).lines()
        assert len(shown) == len(frame) + 1, "a line was wrapped, or something in it moved the cursor"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_columns_of_the_workers_stand_under_their_titles(width: int) -> None:
    troubled = [worker(1, state="empty", incarnation=12, phases={}, cpu=None, pss_bytes=None, pid=None, updates=0)]
    great = [worker(2, samples_per_s=1.2e9, updates=10**8, cpu=12.0, pss_bytes=10**12, stale_p99=127, pid=4_194_303)]
    lines = plain(replace(snapshot(), workers=(worker(0), *troubled, *great)), width - 1)
    at = next(k for k, line in enumerate(lines) if line.startswith("worker"))
    ends, start = [], 0
    for column in columns_for(width - 1):
        start += column.width
        ends.append((start, column.is_left))
        start += 2
    for line in lines[at : at + 4]:
        for end, is_left in ends:
            assert is_left or line[end - 1 : end].strip(), f"nothing ends in column {end} of {line!r}"
            assert line[end : end + 2].strip() == "", f"a cell runs over into the next: {line!r}"


def test_a_silent_worker_says_when_it_is_replaced_and_the_last_line_what_ctrl_c_does() -> None:
    many = [worker(k) for k in range(64)]
    many[40] = worker(40, silent_s=42.0, limit_s=60.0, samples_per_s=0.0)
    many[41] = worker(41, state="starting", phase="compiling")
    lines = plain(snapshot(workers=0, state="stopping"), 79, 23, Display(footer=lambda shown: f"Ctrl-C: {shown.state}"))
    assert lines[-1] == "Ctrl-C: stopping"
    lines = plain(replace(snapshot(), workers=tuple(many)), 79, 23, Display(footer=lambda _: "Ctrl-C"))
    assert "    40  training  silent 42 s, replaced at 60 s" in lines and lines[-1] == "Ctrl-C" and len(lines) == 23
    assert "    41  compiling  (once on this machine)" in lines


def test_more_columns_fit_where_there_is_more_room() -> None:
    assert [column.title for column in columns_for(20)] == ["worker", "state"]
    assert columns_for(200) == list(COLUMNS)
    assert len(columns_for(79)) < len(columns_for(100)) < len(columns_for(200))


def test_of_many_workers_those_in_trouble_are_shown() -> None:
    many = [worker(k) for k in range(64)]
    many[50], many[60] = worker(50, state="empty", incarnation=3), worker(60, incarnation=2)
    assert [one.worker for one in shown_workers(many, 5)] == [0, 1, 50, 60]
    lines = plain(replace(snapshot(), workers=tuple(many)), 79, 23)
    assert len(lines) == 23 and "… and 50 more" in lines
    assert any(line.startswith("    50  restarting") for line in lines)
    assert shown_workers(many, 64) == many


def test_the_fork_server_is_a_row_below_the_workers_while_there_is_room() -> None:
    made = snapshot(server=ServerSnapshot(76, "waiting", 90 << 20))
    assert plain(made, 79)[6:9] == [
        "     0  training       43,643   48 %   97 %    2 %         -    99 %  177 MiB",
        "     1  training       43,643   48 %   97 %    2 %         -    99 %  177 MiB",
        "server  waiting                                                        90 MiB",
    ]
    (row,) = (line for line in plain(replace(made, server=ServerSnapshot(76, "ended")), 200) if "server" in line)
    assert row.split() == ["server", "ended", "76"]
    assert not [line for line in plain(snapshot(64, server=made.server), 79, 23) if "server" in line]


def test_a_worker_that_was_not_started_yet_is_not_one_that_restarts() -> None:
    lines = plain(replace(snapshot(), workers=(worker(0), worker(1, state="empty", incarnation=0))), 79, 23)
    assert any(line.startswith("     1  not yet") for line in lines)


def test_the_end_leaves_what_was_reached_and_no_workers() -> None:
    lines = plain(snapshot(state="succeeded", progress=1.0, epoch=6, position=6.0), 79, is_last=True)
    assert len(lines) == 5 and lines[0].startswith("digits  succeeded  0:01:23   ")
    assert "100 %" in lines[1] and lines[2].endswith("6 of 6")


def test_a_trend_has_a_value_per_record_and_none_for_a_snapshot_between_two() -> None:
    display = Display()
    for loss in (4.0, 2.0, 1.0):
        display.update(snapshot(loss=loss))
        display.update(snapshot(loss=loss, is_between=True))
    assert "loss 1 █▃▁   val loss 0.2345 ▁   " in plain(snapshot(loss=1.0, is_between=True), 79, display=display)[3]


def test_values_of_any_size_have_few_characters() -> None:
    assert [short_number(value) for value in (0, 1.25, 94.84, 1234.5, 9_999_999, 1e7, 2.34e9, 5e12)] == [
        *("0", "1.2", "94.8", "1,234", "9,999,999", "10.0 M", "2.3 G", "5.0 T"),
    ]
    assert [clock(seconds) for seconds in (0, 59.9, 3600, 90_061)] == ["0:00:00", "0:00:59", "1:00:00", "1d 1:01:01"]
    assert blocks([1.0, float("nan"), 3.0, float("inf"), 2.0]) == "▁█▅" or blocks([1.0, 3.0, 2.0]) == "▁█▅"


def test_a_terminal_without_blocks_and_one_without_colours_have_a_picture_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = "".join(line for line, _ in Display().frame(snapshot(), 80, 24))
    assert "\x1b[32m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in "".join(line for line, _ in Display().frame(snapshot(), 80, 24))
    poor = Display(encoding="latin-1").frame(snapshot(64), 60, 12)
    assert "".join(line for line, _ in poor).encode("latin-1") and "##" in poor[1][0]


# ---- on a terminal --------------------------------------------------------------------------------------------------


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    """(master, slave) of 80 columns and 24 lines."""
    master, slave = os.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "24"], stdin=slave, check=True)
    yield master, slave
    for descriptor in (master, slave):
        os.close(descriptor)


@contextlib.contextmanager
def as_stderr(slave: int, term: str = "xterm") -> Iterator[None]:
    """Not a fixture: pytest puts its own stream back between a fixture and the test."""
    with pytest.MonkeyPatch.context() as patch, open(slave, "w", closefd=False) as stream:
        patch.setenv("TERM", term)
        patch.setattr(sys, "stderr", stream)
        yield


@pytest.mark.processes
def test_messages_stand_above_the_newest_frame_and_nothing_is_left_of_older_ones(
    pty: tuple[int, int],
) -> None:
    shown = Screen(Look.LIVE)
    with as_stderr(pty[1]), os.fdopen(os.dup(pty[0]), "rb", buffering=0) as master:
        reader = Reader(master)
        shown.show_message("first " + "x" * 100)  # wraps
        shown.start()
        for updates in (1, 2):
            shown.show(snapshot(updates=updates, restarts=3 - updates))  # the second is a figure shorter
            wait_for("the frame", lambda updates=updates: f"update {updates} of" in reader.text)
        shown.show_message("second\nthird \x1b[2J")
        shown.close()
        wait_for("the end", lambda: "third" in reader.text and "left" in reader.text.rpartition("third")[2])
        wait_for("all of it", lambda: reader.text.endswith("\x1b[J"))
        lines = Terminal().feed(reader.text).lines()
    assert lines[:4] == ["first " + "x" * 74, "x" * 26, "second", "third ?[2J"]
    assert lines[4].startswith("digits  running") and lines[9:] in ([""], []) and len(lines) <= 10
    assert "?25" not in reader.text, "the cursor is never hidden"


def test_a_terminal_that_became_narrower_has_wrapped_the_old_frame() -> None:
    writer = screen_module._TerminalThread(Look.LIVE, screen_module._Inbox(), screen_module.terminal.Continued(), None)
    writer._drawn, writer._width = [79, 30, 79], 80
    assert writer._above(80, 24) == "\r\x1b[3A"
    assert writer._above(40, 24) == "\r\x1b[5A\x1b[J", "lines that were wrapped are cleared as a whole"
    assert writer._above(40, 4) == "\r\x1b[3A", "what was pushed off the top is out of reach"


def fill(master: int, slave: int) -> None:
    """Until the terminal takes nothing more."""
    os.set_blocking(slave, False)
    try:
        while os.write(slave, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    finally:
        os.set_blocking(slave, True)


@pytest.mark.processes
def test_a_terminal_that_does_not_read_gets_the_newest_and_holds_up_nothing(
    pty: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_module, "CLOSE_S", 0.01)
    fill(*pty)
    shown = Screen(Look.LIVE)
    with as_stderr(pty[1]), os.fdopen(os.dup(pty[0]), "rb", buffering=0) as master:
        shown.start()
        for k in range(3000):
            shown.show_message(f"message {k}")
            shown.show(snapshot(updates=k))
        shown.close()  # gives up
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "screen")
        reader = Reader(master)
        thread.join(PATIENCE_S)
        wait_for("the newest", lambda: "update 2,999 of" in reader.text)
        text = reader.text
    assert text.count("update ") <= 3 and "messages could not be shown" in text
    assert "message 0\x1b" in text and "message 2999" not in text


@pytest.mark.processes
def test_a_mistake_in_the_picture_ends_the_picture(pty: tuple[int, int]) -> None:
    shown = Screen(Look.LIVE)
    with as_stderr(pty[1]), os.fdopen(os.dup(pty[0]), "rb", buffering=0) as master:
        reader = Reader(master)
        shown.start()
        shown.show(snapshot(wall_s=float("nan")))
        shown.show_message("still here")
        shown.close()
        wait_for("the words", lambda: "still here" in reader.text)
    assert "warning: the display ends: ValueError" in reader.text


@pytest.mark.processes
def test_what_is_shown_depends_on_the_terminal(pty: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with as_stderr(pty[1]):
        assert (look_for(True, 2), look_for(True, 0), look_for(False, 2)) == (Look.LIVE, Look.ONE_LINE, Look.NOTHING)
    with as_stderr(pty[1], "dumb"):
        assert look_for(True, 2) is Look.LINES
    monkeypatch.setattr(sys, "stderr", None)
    assert look_for(True, 2) is Look.LINES


class Kernel:
    """IPython as a job sees it, which is not installed here: every output of the cell, as it stands now."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.kernel = self.display = self  # of the shell; the module IPython.display

    def get_ipython(self) -> "Kernel":
        return self

    def __call__(self, content: dict[str, str], *, raw: bool, display_id: bool) -> "Kernel":
        assert raw and display_id
        self.outputs.append(content["text/plain"])
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1] = content["text/plain"]


def test_a_notebook_has_one_line_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", kernel)
    assert look_for(True, procs=2) is look_for(True, procs=0) is Look.NOTEBOOK
    assert look_for(False, procs=2) is Look.NOTHING
    shown = Screen(Look.NOTEBOOK)
    shown.line("importing torch, 1 s")
    shown.show_message("epoch 1/6")
    shown.show(snapshot())
    shown.show(snapshot(progress=1.0, state="succeeded"))
    shown.close()
    (line,) = kernel.outputs
    assert line.startswith("━━━━━━━━━━━━━━━━━━━━ 100 %  epoch 2/6  197,520 samples") and line.endswith("succeeded")
    assert capsys.readouterr().err == "epoch 1/6\n"


def test_outside_a_kernel_ipython_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", kernel := Kernel())
    del kernel.kernel  # a shell on a terminal
    assert look_for(True, procs=2) is not Look.NOTEBOOK


def test_a_display_that_fails_leaves_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    shown = Screen(Look.NOTEBOOK)
    shown.show(snapshot())
    shown.close()
    assert "the display ends: ModuleNotFoundError" in capsys.readouterr().err


def test_lines_that_stay_are_rare_and_less_so_while_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shown = 100.0, []
    monkeypatch.setattr(screen_module.time, "monotonic", lambda: now)
    screen = Screen(Look.LINES)
    monkeypatch.setattr(screen, "line", lambda text: shown.append((now, text.split()[0])))
    for second in range(100):
        now = 100.0 + second
        screen.show(snapshot(state="starting" if second < 20 else "running"))
    assert shown == [(108.0, "starting"), (116.0, "starting"), (146.0, "33"), (176.0, "33")]


@pytest.mark.processes
def test_a_live_display_begins_with_a_line(pty: tuple[int, int]) -> None:
    """While the job is built: in place, above it the messages, and in its place the first picture."""
    shown = Screen(Look.LIVE)
    with as_stderr(pty[1]), os.fdopen(os.dup(pty[0]), "rb", buffering=0) as master:
        reader = Reader(master)
        for second in (1, 2):
            shown.line(f"importing torch, {second} s")
            wait_for("the line", lambda second=second: f"torch, {second} s" in reader.text)
        shown.show_message("first")
        shown.line("")
        shown.show(snapshot())
        shown.close()
        wait_for("the picture", lambda: "staleness" in reader.text and reader.text.endswith("\x1b[J"))
        lines = Terminal().feed(reader.text).lines()
    assert lines[0] == "first" and lines[1].startswith("digits  running") and "importing" not in "".join(lines)


# ---- a job ----------------------------------------------------------------------------------------------------------


def begin_job(folder: Path, slave: int, mark: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Its standard error is the terminal."""
    return subprocess.Popen(
        [sys.executable, RUN_PY, "train", "--procs", "1", "--run-dir", str(folder / "run"), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=environment(mark, folder, {"TERM": "xterm"}),
    )


@pytest.mark.whole
@pytest.mark.processes
def test_a_job_is_watched_while_it_is_stopped_goes_on_and_loses_a_worker(pty: tuple[int, int], tmp_path: Path) -> None:
    job = begin_job(tmp_path, pty[1], "display-watched", "train.epochs=1000000", "log.every_s=0.05")
    try:
        with os.fdopen(os.dup(pty[0]), "rb", buffering=0) as master:
            reader = Reader(master)
            wait_for("a worker that trains", lambda: "0  \x1b[32mtraining" in reader.text)
            job.send_signal(signal.SIGSTOP)
            wait_for("the stop", lambda: state_of(job.pid) == "T")
            wait_for("what it wrote before", lambda: reader.text.endswith("\x1b[J"))
            before = len(reader.text)
            job.send_signal(signal.SIGCONT)
            wait_for("another frame", lambda: "epoch" in reader.text[before:])
            assert not reader.text[before:].startswith("\r\x1b["), "what stands there now is the shell's"
            (spawned,) = read_events(tmp_path / "run", "spawn")
            os.kill(spawned["pid"], signal.SIGKILL)
            wait_for("its words", lambda: "killed by SIGKILL" in reader.text)
            wait_for("the restart in the picture", lambda: "restarts \x1b[1m1" in reader.text)
            job.send_signal(signal.SIGINT)
            assert job.wait(PATIENCE_S) == 75
            wait_for("the end", lambda: "stopped" in reader.text and reader.text.endswith("\x1b[J"))
            lines = Terminal().feed(reader.text).lines()
            assert "?25" not in reader.text
    finally:
        job.kill()
        job.wait()
    last = [line for line in lines if line]
    headed = next(number for number, line in enumerate(last) if line.startswith("digits  stopped"))
    assert last[headed + 1].startswith("job"), "the picture that stays"
    assert len(last) - headed in (5, 6), "figures that are wide take two lines"
    assert any(line.startswith("worker 0 (pid ") and "killed by SIGKILL" in line for line in lines)
    assert marked("display-watched") == {}


@pytest.mark.processes
def test_a_job_ends_though_nobody_reads_its_terminal(pty: tuple[int, int], tmp_path: Path) -> None:
    fill(*pty)
    job = begin_job(tmp_path, pty[1], "display-unread", "train.epochs=2", "log.every_s=0.01")
    try:
        assert job.wait(PATIENCE_S) == 0
    finally:
        job.kill()
        job.wait()
    assert (tmp_path / "run" / "summary.json").exists() and marked("display-unread") == {}
