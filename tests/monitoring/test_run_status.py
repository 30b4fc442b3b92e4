"""A run as another process reads it: its state from the lock and status.json, whatever was killed or damaged."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.errors import NotFoundError, RunError
from hogwild.monitoring import run_status
from hogwild.monitoring.job_view import Best, Glance, StreamGlance, WorkerGlance, progress_line
from hogwild.monitoring.run_logs import follow
from hogwild.monitoring.run_status import (
    ALIVE,
    EXIT_STATUS,
    LATE_S,
    LOST,
    RunAttempt,
    RunStatus,
    find_run,
    glance_of,
    read_status,
    record_of,
    runs_in,
)
from hogwild.storage.run_directory import LOCK, RESOLVED, STATUS, RunDir, to_json
from tests.helpers.jobs import Job
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.run_status import no_start_up

GLANCE = Glance(
    name="digits",
    run_dir="/data/runs/digits",
    state="running",
    wall_s=83.2,
    left_s=250.0,
    epoch=1,
    epochs=6,
    position=1.6,
    updates=12_345,
    planned_updates=37_035,
    samples=197_520,
    progress=1 / 3,
    samples_per_s=90_854.0,
    loss=0.12345,
    best=Best("auc", 0.852, 11_000, 3, "update-000011000"),
    metrics={"auc": 0.85},
    stream=StreamGlance(loaders=1, wanted=2, filled=3, slots=4),
    spares=1,
    workers=(WorkerGlance(0, "training", pid=7, phases={"working": 1.0}), WorkerGlance(1, "training", pid=8)),
    news=("12:00:00  worker 0  ready",),
)


def here(**changes: Any) -> RunAttempt:
    return replace(RunAttempt.here("command line", 1.0, {}), **changes)


def write(run: Path, state: str, attempt: RunAttempt | None = None, **more: Any) -> dict[str, Any]:
    run.mkdir(exist_ok=True)
    record = record_of(attempt or here(), state, GLANCE, more)
    (run / STATUS).write_text(json.dumps(to_json(record)))
    return record


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A run directory whose lock is held."""
    with RunDir.create(tmp_path / "run", "job") as run:
        (run.path / RESOLVED).touch()
        yield run.path


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*ALIVE, *EXIT_STATUS])
def test_the_state_of_a_run_with_its_lock_is_the_one_it_wrote(state: str, held: Path) -> None:
    write(held, state)
    found = read_status(held)
    assert (found.state, found.is_alive) == (state, state in ALIVE)


@pytest.mark.parametrize("state", ALIVE)
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_run_without_lock_and_without_end_is_lost(state: str, is_begun: bool, tmp_path: Path) -> None:
    write(tmp_path / "run", state)
    if is_begun:
        (tmp_path / "run" / RESOLVED).touch()
    found = read_status(tmp_path / "run")
    assert (found.state, found.is_alive, found.glance.samples_per_s, found.glance.workers) == (LOST, False, 0.0, ())
    assert ("train --resume" in found.way_on) == is_begun


@pytest.mark.parametrize("state", EXIT_STATUS)
def test_an_ended_run_has_its_end(state: str, tmp_path: Path) -> None:
    write(tmp_path / "run", state, reason="why")
    found = read_status(tmp_path / "run")
    assert (found.state, found.ending, found.glance.state) == (state, f"{state}: why", state)


@pytest.mark.parametrize("content", [None, b"", b'{"state": "runn', b"[1, 2]", b"\x00" * 100, b'{"state": 7}'])
def test_a_missing_or_damaged_status_leaves_the_lock_to_tell(content: bytes | None, held: Path) -> None:
    if content is not None:
        (held / STATUS).write_bytes(content)
    assert read_status(held).state == "building"
    other = held.parent / "other"
    other.mkdir()
    (other / RESOLVED).touch()
    if content is not None:
        (other / STATUS).write_bytes(content)
    found = read_status(other)
    assert found.state == LOST and found.glance.name == "other"


@pytest.mark.parametrize(
    "attempt", [here(boot_id="another boot", host="elsewhere"), here(start_ticks=1), here(pid=2**22 + 7)]
)
def test_a_process_that_is_another_one_cannot_be_signalled(attempt: RunAttempt, held: Path) -> None:
    """The lock says that the run is alive, for instance in another container."""
    write(held, "running", attempt)
    found = read_status(held)
    assert found.is_alive
    with pytest.raises(RunError, match="cannot be found from here") as raised:
        found.find_process()
    assert raised.value.code == "run/elsewhere"


def test_the_process_of_a_run_is_found(held: Path) -> None:
    write(held, "running")
    os.close(read_status(held).find_process())


@pytest.mark.processes
def test_where_the_system_cannot_tell_of_a_lock_the_process_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a sandbox without locks of open files: alive, another boot, a reused number, a zombie, gone."""
    monkeypatch.setattr(run_status.host, "is_locked", lambda _: None)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours = here(pid=child.pid, start_ticks=host.start_ticks(child.pid) or 0)

    def state(attempt: RunAttempt) -> str:
        write(tmp_path / "run", "running", attempt)
        return read_status(tmp_path / "run").state

    assert state(ours) == "running"
    assert state(replace(ours, boot_id="another")) == state(replace(ours, start_ticks=ours.start_ticks + 1)) == LOST
    child.kill()
    wait_for("a zombie", lambda: host.process_status(child.pid) == "zombie")
    assert state(ours) == LOST
    child.communicate()
    assert state(ours) == LOST


def test_a_late_record_is_silent_and_has_no_speed(held: Path) -> None:
    record = write(held, "running")
    assert read_status(held).late_s is None
    (held / STATUS).write_text(json.dumps(to_json(record | {"time": time.time() - LATE_S - 5})))
    found = read_status(held)
    assert found.late_s is not None and found.glance.samples_per_s == 0.0
    assert found.glance.state == f"silent for {found.late_s:.0f} s"


def test_a_record_holds_the_whole_glance(tmp_path: Path) -> None:
    record = write(tmp_path / "run", "running", spares=[{"pid": 1, "state": "waiting"}])
    read = read_status(tmp_path / "run").record
    assert glance_of(read) == GLANCE and read.keys() == record.keys()
    assert (read["state"], read["doing"], read["exit_status"]) == ("running", "running", None)


def test_what_a_later_version_adds_or_leaves_out_is_no_error(tmp_path: Path) -> None:
    record = {"state": "running", "later": 1, "workers": [{"worker": 3, "state": "training", "later": 2}, {}, "?"]}
    glance = glance_of({**record, "name": "x", "run_dir": "y", "best": {"metric": "auc", "value": None}, "spares": 5})
    assert (glance.name, glance.updates, [worker.worker for worker in glance.workers]) == ("x", 0, [3])
    assert str(glance.best) == "auc nan"


def test_an_attempt_has_the_next_number(tmp_path: Path) -> None:
    assert [RunAttempt.here("x", 1.0, before).attempt for before in ({}, {"attempt": 4}, {"state": "failed"})] == [
        1,
        5,
        2,
    ]


# ---- finding runs ---------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_path_by_name_and_as_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="no runs are in"):
        find_run("latest")
    (tmp_path / "runs" / "no-run").mkdir(parents=True)
    for number, name in enumerate(("old", "newest", "older")):
        write(tmp_path / "runs" / name, "succeeded", here(began=1000.0 + (number == 1)))
    assert find_run("old") == find_run("runs/old") == Path("runs/old")
    assert find_run("latest") == Path("runs/newest") and find_run(str(tmp_path / "runs" / "older")).name == "older"
    for given, code in (("olld", "run/not-found"), ("no-run", "run/not-a-run"), ("/nowhere", "run/not-found")):
        with pytest.raises(NotFoundError) as raised:
            find_run(given)
        assert raised.value.code == code and ("did you mean 'old'" in str(raised.value)) == (given == "olld")


def test_two_hundred_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for number in range(200):
        write(tmp_path / f"run-{number}", "succeeded", here(began=1000.0 + number))
    (tmp_path / "else").mkdir()
    assert [run.path.name for run in runs_in(tmp_path)] == [f"run-{number}" for number in reversed(range(200))]
    with pytest.raises(NotFoundError):
        runs_in(tmp_path / "nowhere")


# ---- the lock -------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_asking_for_a_lock_never_refuses_a_job_that_starts(tmp_path: Path) -> None:
    file, ask = (
        tmp_path / LOCK,
        "while True: host.is_locked(Path({!r})); count += 1; count % 1000 or print(count, flush=True)",
    )
    code = f"from pathlib import Path; from hogwild import host; count = 0\n{ask.format(str(file))}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        asking.stdout.readline()
        for _ in range(200):
            descriptor = host.lock_file(file)  # raises if it is refused
            assert host.is_locked(file)
            os.close(descriptor)
            assert not host.is_locked(file)
        asking.stdout.readline()
        asking.kill()


@pytest.mark.processes
def test_a_lock_is_seen_from_outside_until_its_process_is_killed(tmp_path: Path) -> None:
    file = tmp_path / LOCK
    assert host.is_locked(file) is False, "there is no such file"
    code = "from pathlib import Path; from hogwild import host\n"
    code += f"host.lock_file(Path({str(file)!r})); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        os.chmod(file, 0o444)
        assert host.is_locked(file) is True
        holder.kill()
        wait_for("its end", lambda: host.is_locked(file) is False)


# ---- while a job starts ---------------------------------------------------------------------------------------------


def test_a_run_is_building_from_its_first_moment(tmp_path: Path) -> None:
    startup = no_start_up(every_s=0.05)
    with RunDir.create(tmp_path / "run", "job") as run, startup:
        startup.follow(run, is_resumed=False)
        found = read_status(run.path)
        assert (found.state, found.record["pid"], found.record["attempt"]) == ("building", os.getpid(), 1)
        assert found.record["start_ticks"] == host.start_ticks(os.getpid())
        startup.phase("reading")
        startup.start()
        wait_for("the phase", lambda: read_status(run.path).record["doing"] == "reading")
    found = read_status(tmp_path / "run")
    assert (found.state, found.is_begun) == (LOST, False)
    with RunDir.create(tmp_path / "run", "job"):  # what a killed start leaves is no run
        pass


def test_a_refused_resume_leaves_the_status_as_it_was_and_a_started_one_carries_the_sums(tmp_path: Path) -> None:
    write(tmp_path / "run", "failed", here(attempt=3), reason="x", lane_restarts=2)
    before = (tmp_path / "run" / STATUS).read_bytes()
    with RunDir.create(tmp_path / "other", "job") as run:
        (run.path / STATUS).write_bytes(before)
        startup = no_start_up()
        startup.follow(run, is_resumed=True)
        record = read_status(run.path).record
        assert (record["state"], record["attempt"], record["reason"]) == ("building", 4, None)
        assert (record["updates"], record["lane_restarts"], record["workers"]) == (GLANCE.updates, 2, [])
        startup.refuse()
        assert (run.path / STATUS).read_bytes() == before


# ---- lines ----------------------------------------------------------------------------------------------------------


def test_a_line_of_progress_holds_all_that_matters() -> None:
    assert progress_line(GLANCE) == (
        " 33 %  epoch 2/6  197,520 samples  loss 0.1235  90,854 samples/s  left 0:04:10  "
        "best auc 0.852, epoch 3 → checkpoints/best"
    )
    silent = (WorkerGlance(0, "training", silent_s=42.3, limit_s=60.0), WorkerGlance(1, "training", limit_s=60.0))
    bare = Glance("x", "y", "stopping", samples=7, workers=silent)
    assert progress_line(bare) == "epoch 1/1  7 samples  0 samples/s  stopping  worker 0 silent 42 s, replaced at 60 s"
    starting = (
        WorkerGlance(0, "starting", "compiling"),
        WorkerGlance(1, "ready"),
        WorkerGlance(2, "starting", "compiling"),
    )
    assert progress_line(Glance("x", "y", "starting", wall_s=12.0, workers=starting)) == (
        "starting workers, 12 s: 2 compiling, 1 ready"
    )


@pytest.mark.parametrize(
    ("silent_s", "limit_s", "words"),
    [
        (4.9, 20.0, ""),
        (5.1, 20.0, "silent 5 s, replaced at 20 s"),
        (89.0, 600.0, ""),  # its batches may take 30 s
        (91.0, 600.0, "silent 91 s, replaced at 600 s"),
        (1000.0, None, ""),
    ],
)
def test_an_unusual_silence_says_when_it_ends(silent_s: float, limit_s: float | None, words: str) -> None:
    assert WorkerGlance(0, "training", silent_s=silent_s, limit_s=limit_s).silence == words


# ---- logs -----------------------------------------------------------------------------------------------------------


def test_following_a_log_loses_and_repeats_no_line(tmp_path: Path) -> None:
    """Its writer appends meanwhile, in pieces of lines too."""
    file, is_over = tmp_path / "log", threading.Event()
    lines = [f"line {number} {'é' * (number % 50)}" for number in range(3000)]

    def append() -> None:
        chance = random.Random(1)
        content = "".join(f"{line}\n" for line in lines).encode()
        with file.open("ab", buffering=0) as stream:
            while content:
                size = chance.randrange(1, 200)
                stream.write(content[:size])
                content = content[size:]
        is_over.set()

    writer = threading.Thread(target=append)
    writer.start()
    found = "\n".join(follow(file, lambda: not is_over.is_set()))
    writer.join()
    assert found.split("\n") == lines


def test_a_log_that_is_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log"
    steps: list[Callable[[], object]] = [
        lambda: None,  # there is none yet
        lambda: file.write_text("first\nsecond\ntorn"),
        lambda: file.write_text("cut\n"),  # shorter
        lambda: (tmp_path / "new").write_text("replaced\nby another file, which is longer\nthe end"),
        lambda: (tmp_path / "new").replace(file),
    ]
    waiting = iter(steps)

    def goes_on() -> bool:
        step = next(waiting, None)
        if step is not None:
            step()
        return step is not None

    assert list(follow(file, goes_on)) == [
        "first\nsecond",
        "cut",
        "replaced\nby another file, which is longer",
        "the end",
    ]


# ---- a job ----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(4))
def test_a_job_killed_at_a_random_moment_is_lost_and_its_status_whole(
    seed: int, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    """From its run directory's first moment on, until training is under way."""
    job = start_job(
        tmp_path, "train", "--procs", "1", "train.epochs=100000", "log.every_s=0.01", "log.tensorboard=false"
    )
    wait_for("its status", (job.run_dir / STATUS).exists)
    assert read_status(job.run_dir).state in ("building", "running")
    until, seen = time.monotonic() + random.Random(seed).uniform(0.0, 2.0), set()
    while time.monotonic() < until:
        assert job.status()["pid"] == job.process.pid, "whole, whenever it is read"
        seen.add(read_status(job.run_dir).state)
    job.send(signal.SIGKILL)
    job.process.wait(PATIENCE_S)
    assert seen <= {"building", "running"}
    found = read_status(job.run_dir)
    assert (found.state, found.record["state"] in ("building", "running")) == (LOST, True)
    assert found.record["pid"] == job.process.pid and not job.left_behind()


def test_a_run_status_needs_no_record(tmp_path: Path) -> None:
    bare = RunStatus(tmp_path, LOST, {}, is_begun=False)
    assert bare.ago_s >= 0.0 and bare.late_s is None and bare.way_on.endswith("start it again")
