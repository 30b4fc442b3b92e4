"""status.json as another process reads it, and what a run directory tells in any state. Alive is who holds the lock;
asking for it stands in nobody's way."""

import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.cli import main
from hogwild.errors import HogwildError, NotFoundError, RunError
from hogwild.monitoring import run_status
from hogwild.monitoring.live_display import Display
from hogwild.monitoring.run_status import (
    Best,
    JobSnapshot,
    RunAttempt,
    ServerSnapshot,
    StreamSnapshot,
    WorkerSnapshot,
    find_run,
    is_running,
    read_status,
    record_of,
    runs_in,
    snapshot_of,
)

SNAPSHOT = JobSnapshot(
    name="digits",
    run_dir="/runs/digits",
    state="evaluating",
    wall_s=83.25,
    left_s=250.5,
    epoch=1,
    epochs=6,
    position=1.5,
    updates=12_345,
    planned_updates=37_035,
    samples=197_520,
    progress=0.25,
    samples_per_s=90_854.0,
    loss=0.125,
    lr=0.05,
    metrics={"accuracy": 0.975},
    best=Best("accuracy", 0.975, 12_000, 1, "update-000012000"),
    workers=(
        WorkerSnapshot(0, "training", phase="working", pid=77, phases={"working": 1.0}, cpu=0.5),
        WorkerSnapshot(1, "starting", pid=78, incarnation=3, silent_s=42.5, limit_s=60.0),
    ),
    server=ServerSnapshot(76, "waiting", 90 << 20),
    stream=StreamSnapshot(loaders=1, wanted=2, filled=3, slots=8, deaths=1),
)


def attempt(**changes: Any) -> RunAttempt:
    found = asdict(RunAttempt.here("command line", 1.0))
    return RunAttempt(**{**found, **changes})


def record(state: str = "running", snapshot: JobSnapshot = SNAPSHOT, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(record_of(attempt(), state, snapshot, more)))
    return made


def write(folder: Path, content: Any) -> Path:
    """A run directory in which a job trained."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolved.yaml").write_text("version: 1\n")
    (folder / ".lock").touch()
    if content is not None:
        (folder / "status.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


# ---- the record ------------------------------------------------------------------------------------------------------


def test_a_record_holds_the_whole_snapshot_and_who_made_it() -> None:
    made = record()
    assert {field.name for field in fields(JobSnapshot)} - {"is_between"} <= made.keys()
    assert {field.name for field in fields(WorkerSnapshot)} | {"doing", "silence"} == made["workers"][0].keys()
    assert [(one["doing"], one["silence"]) for one in made["workers"]] == [
        ("training", ""),
        ("starting", "silent 42 s, replaced at 60 s"),
    ]
    assert made["server"] == {"pid": 76, "state": "waiting", "pss_bytes": 90 << 20, "is_serving": True}
    assert snapshot_of(made) == SNAPSHOT and made["state"] == "running" and made["doing"] == "evaluating"
    assert (made["pid"], made["boot_id"]) == (os.getpid(), Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert made["start_ticks"] == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert {made[name] for name in ("reason", "error", "error_code", "exit_status")} == {None}


@pytest.mark.parametrize(
    ("state", "phase", "incarnation", "doing"),
    [
        ("training", "working", 1, "training"),
        ("training", "parked", 1, "parked"),
        ("starting", "compiling", 1, "compiling"),
        ("starting", "booting", 1, "starting"),
        ("empty", "booting", 0, "not yet"),
        ("empty", "booting", 2, "restarting"),
        ("retired", "leaving", 2, "given up"),
    ],
)
def test_every_display_says_in_the_same_word_what_a_worker_does(
    state: str, phase: str, incarnation: int, doing: str
) -> None:
    assert WorkerSnapshot(0, state, phase, incarnation=incarnation).doing == doing


@pytest.mark.parametrize(("before", "number"), [({}, 1), ({"state": "stopped"}, 2), ({"attempt": 4}, 5)])
def test_attempts_are_counted_also_after_one_of_an_older_version(before: dict[str, Any], number: int) -> None:
    assert RunAttempt.here("command line", 1.0).after(before).attempt == number


def test_figures_that_were_nan_are_nan_again() -> None:
    found = snapshot_of(record(metrics={"loss": None}) | {"best": {"metric": "loss", "value": None}})
    assert math.isnan(found.metrics["loss"]) and found.best is not None and math.isnan(found.best.value)


LITTLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "parts without their fields": {"state": "running", "workers": [{"worker": 0}, {}, 7], "best": {"metric": "loss"}},
    "figures that were NaN": record(metrics={"loss": None}, loss=None) | {"best": {"metric": "loss", "value": None}},
    "other types": dict.fromkeys(record(), "text") | {"stream": {"loaders": "x"}},
    "other types in the parts": record() | {"workers": [{"worker": "x", "phases": {"a": "b"}}], "metrics": {"a": "b"}},
    "lists": {key: [1] for key in record()},
}


@pytest.mark.parametrize("case", LITTLE)
def test_a_record_with_little_in_it_can_be_shown(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", LITTLE[case])
    assert main.run(["status", str(run)]) == 0 and main.run(["runs", str(tmp_path)]) == 0
    assert "lost" in capsys.readouterr().out
    assert Display().lines(read_status(run).snapshot, 80, 24)


# ---- states ----------------------------------------------------------------------------------------------------------

ENDS = ("succeeded", "failed", "stopped", "cancelled")
STATES: dict[str, tuple[Any, str, str]] = {
    # status.json: state with the lock, and without it
    **{state: (record(state), state, "lost") for state in ("building", "running", "stopping")},
    **{state: (record(state), state, state) for state in ENDS},
    "missing": (None, "building", "lost"),
    "empty": ("", "building", "lost"),
    "half": (json.dumps(record())[:200], "building", "lost"),
    "zeros, after a power cut": ("\0" * 512, "building", "lost"),
    "not a record": ("[1, 2]", "building", "lost"),
    "a state of a later version": (record("dreaming"), "building", "lost"),
    "of an older version": ({"state": "running", "updates": 7, "pid": 1}, "running", "lost"),
}


@pytest.mark.parametrize("case", STATES)
def test_the_state_follows_from_the_record_and_the_lock(case: str, tmp_path: Path) -> None:
    content, held, free = STATES[case]
    run = write(tmp_path / "run", content)
    assert (found := read_status(run)).state == free
    assert found.is_alive is False and found.snapshot.name and found.ending.startswith(free)
    assert bool(found.way_on) is (free != "succeeded")
    lock = host.lock_file(run / ".lock")
    try:
        assert (found := read_status(run)).state == held
        assert found.is_alive is (held not in ENDS) and (not found.is_alive or found.way_on == "")
    finally:
        os.close(lock)
    assert read_status(run).state == free


def test_a_lost_run_shows_its_last_position_and_that_nothing_moves(tmp_path: Path) -> None:
    snapshot = read_status(write(tmp_path / "run", record())).snapshot
    assert (snapshot.state, snapshot.updates, snapshot.progress) == ("lost", 12_345, 0.25)
    assert (snapshot.samples_per_s, snapshot.left_s, snapshot.workers) == (0.0, None, ())


WHO: dict[str, tuple[dict[str, Any], bool]] = {
    "this process": ({}, True),
    "another boot": ({"boot_id": "00000000-0000-0000-0000-000000000000"}, False),
    "a reused number": ({"start_ticks": 1}, False),
    "a number nobody has": ({"pid": 2**22 + 1}, False),
    "no number": ({"pid": None}, False),
    "no boot": ({"boot_id": None}, False),
}


@pytest.mark.parametrize("case", WHO)
def test_where_locks_cannot_be_asked_the_process_decides(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody else is ever found to be signalled."""
    changes, is_it = WHO[case]
    run = write(tmp_path / "run", record() | changes)
    monkeypatch.setattr(run_status.host, "is_locked", lambda path: None, raising=False)
    found = read_status(run)
    assert (is_running(found.record), found.state) == (is_it, "running" if is_it else "lost")
    if is_it:
        os.close(found.find_process())
        return
    with pytest.raises(RunError, match="cannot be found from here") as caught:
        found.find_process()
    assert caught.value.code == "run/elsewhere"


@pytest.mark.processes
def test_a_dead_process_that_nobody_has_reaped_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = {"pid": child.pid, "start_ticks": host.start_ticks(child.pid), "boot_id": host.boot_id()}
        assert zombie["start_ticks"] is not None and not is_running(zombie)
    finally:
        child.wait()
    assert host.start_ticks(child.pid) != zombie["start_ticks"]


# ---- the lock --------------------------------------------------------------------------------------------------------


def test_asking_for_the_lock_never_refuses_a_job_that_starts(tmp_path: Path) -> None:
    """Two threads ask all the time; a lock is taken and released, many times, and every answer meanwhile is right."""
    file, over = tmp_path / ".lock", threading.Event()
    asked = [0, 0]

    def ask(number: int) -> None:
        while not over.is_set():
            assert host.is_locked(file) is not None
            asked[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        taken = 0
        while taken < 2000 or min(asked) < 200:
            lock = host.lock_file(file)  # BlockingIOError, if an asker had it for an instant
            assert host.is_locked(file) is True
            os.close(lock)
            assert host.is_locked(file) is False
            taken += 1
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert all(asked)


@pytest.mark.processes
def test_the_lock_is_seen_from_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    assert host.is_locked(file) is False, "it does not exist yet"
    program = "import sys, hogwild.host as h; h.lock_file(sys.argv[1]); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline()
    assert host.is_locked(file) is True
    with pytest.raises(BlockingIOError):
        host.lock_file(file)
    holder.kill()
    holder.communicate()
    assert host.is_locked(file) is False


# ---- finding runs ----------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_its_path_its_name_or_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("digits-1", "digits-3", "digits-2")):
        write(tmp_path / "runs" / name, record() | {"began": 100.0 + number})
    write(tmp_path / "elsewhere", record() | {"began": 900.0})
    (tmp_path / "runs" / ".cache").mkdir()
    assert [run.path.name for run in runs_in(Path("runs"))] == ["digits-2", "digits-3", "digits-1"]
    assert find_run("latest") == Path("runs/digits-2") and find_run("digits-1") == Path("runs/digits-1")
    assert find_run("elsewhere") == Path("elsewhere") and find_run("runs/digits-3/") == Path("runs/digits-3")
    for given, code, words in (
        ("digits-4", "run/not-found", "did you mean"),
        ("x" * 300, "run/not-found", "3 runs are in"),
        ("runs", "run/not-a-run", "no status.json"),
    ):
        with pytest.raises(NotFoundError, match=words) as caught:
            find_run(given)
        assert caught.value.code == code
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(HogwildError, match="no runs are in"):
        find_run("latest")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_run_that_we_may_not_read_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    run = write(tmp_path / "run", record())
    for file in run.iterdir():
        file.chmod(0o600)
    lock = host.lock_file(run / ".lock")
    os.seteuid(65534)
    try:
        with pytest.raises(NotFoundError, match="that you may read"):
            find_run("run")
    finally:
        os.seteuid(0)
        os.close(lock)


def test_a_run_that_was_moved_is_shown_where_it_is(tmp_path: Path) -> None:
    run = write(tmp_path / "run", record(snapshot=replace(SNAPSHOT, run_dir="/before")))
    assert read_status(run).snapshot.run_dir == str(run)


def test_a_run_that_is_removed_while_it_is_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is refused while it is built removes its directory."""
    monkeypatch.setattr(run_status, "_is_run", lambda path: True)
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(run_status.os, "listdir", lambda path: ["gone", "there"])
    assert [run.path.name for run in runs_in(tmp_path)] == ["there", "gone"]
