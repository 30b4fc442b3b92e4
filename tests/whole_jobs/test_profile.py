"""`--profile`: what a worker records with torch's own profiler, and the whole command."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hogwild.cli import main
from hogwild.monitoring.profile_report import PAUSE, PHASES, SETTLING, PhaseRecord, Window, phases_name, read_phases
from hogwild.workers.child.profiler import Profile, Stopwatch, TorchProfile, make_profile
from tests.helpers.jobs import HOME, JOBS, Ended, in_turn

IN_AN_UPDATE = [phase for phase in PHASES if phase != "wait"]


def train(profile: Profile, updates: int, number: int = 0) -> None:
    """As a worker does, with something for torch to do in every phase. `number`: of the first update."""
    numbers = torch.ones(8)
    for update in range(number, number + updates):
        profile.start_update(update)
        for phase in [phase for phase in PHASES if phase != "wait"]:
            profile.enter(phase)
            numbers.mul(1.0)
        profile.enter("wait")


def events(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "worker-0.json").read_text())["traceEvents"]
    return found


def ranges(folder: Path) -> list[str]:
    """Names of updates and phases in the trace, in order."""
    ours = [event for event in events(folder) if event.get("cat") == "user_annotation"]
    return [event["name"] for event in sorted(ours, key=lambda event: (event["ts"], -event["dur"]))]


def record(folder: Path) -> PhaseRecord:
    found = read_phases(folder, 0)
    assert found is not None
    return found


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Profile]:
    """Yield the profile of updates 5 to 9 of worker 0."""
    made = make_profile((Window(5, 10), tmp_path), 0)
    yield made
    made.close()  # the profiler is one per process: it must not run on into the next test


# ---- the clock -------------------------------------------------------------------------------------------------------


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is one second later at every look."""
    ticks = iter(range(0, 10**15, 10**9))
    monkeypatch.setattr("hogwild.workers.child.profiler.time.monotonic_ns", lambda: next(ticks))


def seconds(watch: Stopwatch) -> list[dict[str, float]]:
    return [{phase: ns / 1e9 for phase, ns in update.items()} for update in watch.updates]


def test_a_stopwatch_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    watch = Stopwatch()
    for number in range(2):
        watch.start_update(number)
        for phase in ("gather", "forward", "gather", "forward", "bookkeeping", "wait"):
            watch.enter(phase)
    watch.finish()
    assert seconds(watch) == [{"bookkeeping": 2, "gather": 2, "forward": 2, "wait": 1}] * 2


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["apply", "bookkeeping", "wait"], [{"bookkeeping": 2, "apply": 1}]),  # waiting for the end is no part of it
        (["apply", "bookkeeping", PAUSE], [{"bookkeeping": 2, "apply": 1}]),
        (["apply", "bookkeeping"], [{"bookkeeping": 2, "apply": 1}]),
        (["gather", "forward"], []),  # an exception in the model
        ([], []),
    ],
)
def test_an_update_that_is_broken_off_does_not_count(
    monkeypatch: pytest.MonkeyPatch, phases: list[str], expected: list[dict[str, float]]
) -> None:
    ticking(monkeypatch)
    watch = Stopwatch()
    watch.start_update(0)
    for phase in phases:
        watch.enter(phase)
    watch.break_off()
    assert seconds(watch) == expected


# ---- a worker's window -----------------------------------------------------------------------------------------------


def test_the_updates_of_the_window_are_in_the_trace_with_their_phases(profile: Profile, tmp_path: Path) -> None:
    train(profile, 11)
    phases = ["bookkeeping", *IN_AN_UPDATE, "wait"]
    assert ranges(tmp_path) == [name for update in range(5, 10) for name in (f"update {update}", *phases)]
    assert sum(event["name"] == "aten::mul" for event in events(tmp_path)) == 5 * len(IN_AN_UPDATE)
    assert f" {5 * len(IN_AN_UPDATE)}  " in next(
        line for line in (tmp_path / "worker-0.operators.txt").read_text().splitlines() if "aten::mul" in line
    )


def test_an_update_goes_around_its_phases_and_not_around_the_waiting(profile: Profile, tmp_path: Path) -> None:
    train(profile, 11)
    by_name = {event["name"]: event for event in events(tmp_path)}
    update, inside, outside = (by_name[name] for name in ("update 9", "apply", "wait"))
    assert update["ts"] <= inside["ts"] and inside["ts"] + inside["dur"] <= update["ts"] + update["dur"]
    assert outside["ts"] >= update["ts"] + update["dur"]


def test_phases_are_timed_on_as_many_later_updates_without_the_profiler(profile: Profile, tmp_path: Path) -> None:
    train(profile, 10 + SETTLING + 5)
    assert ranges(tmp_path).count("apply") == 5 and record(tmp_path).timed == []
    train(profile, 1, 10 + SETTLING + 5)
    found = record(tmp_path)
    assert found.is_complete and found.pid == os.getpid()
    assert [set(update) for update in found.timed] == [set(PHASES)] * 5
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_window_ends_after_its_length_although_nothing_is_applied(profile: Profile, tmp_path: Path) -> None:
    for _ in range(6):
        train(profile, 1, 7)  # skipped batches: the number of updates stands still
    assert ranges(tmp_path).count("update 7") == 5


def test_a_worker_that_leaves_in_its_window_leaves_what_it_has(profile: Profile, tmp_path: Path) -> None:
    train(profile, 8)
    profile.start_update(8)
    profile.enter("forward")
    profile.close()
    profile.close()
    assert record(tmp_path).timed == [] and not record(tmp_path).is_complete
    assert ranges(tmp_path)[-3:] == ["update 8", "bookkeeping", "forward"]
    train(profile, 30, 9)
    assert record(tmp_path).timed == []  # it is over


def test_a_worker_that_leaves_while_it_is_timed_keeps_both(profile: Profile, tmp_path: Path) -> None:
    train(profile, 10 + SETTLING + 2)
    profile.close()
    assert ranges(tmp_path).count("apply") == 5 and len(record(tmp_path).timed) == 2


def test_a_worker_that_is_killed_in_its_window_leaves_the_note_that_it_came_there(
    profile: Profile, tmp_path: Path
) -> None:
    train(profile, 5)
    assert not list(tmp_path.iterdir())
    profile.start_update(5)
    assert [file.name for file in tmp_path.iterdir()] == [phases_name(0)]


def test_an_incarnation_records_again_only_what_the_one_before_has_not(profile: Profile, tmp_path: Path) -> None:
    asked = Window(5, 10), tmp_path
    train(profile, 10 + SETTLING + 5)
    assert isinstance(make_profile(asked, 0), TorchProfile)
    train(profile, 1, 10 + SETTLING + 5)
    assert not isinstance(make_profile(asked, 0), TorchProfile)
    assert isinstance(make_profile(asked, 1), TorchProfile)
    assert not isinstance(make_profile(None, 0), TorchProfile)


def test_a_disk_that_takes_nothing_stops_no_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gone = make_profile((Window(0, 2), tmp_path / "gone"), 0)
    train(gone, 4 + SETTLING)
    gone.close()
    assert "worker-0.json cannot be written" in capfd.readouterr().err


# ---- the whole command -----------------------------------------------------------------------------------------------

LENGTH = 5
NEEDED = 10 + SETTLING + LENGTH + 1  # updates until all of 5:10 is recorded
DIGITS = ["train.threads=1", "train.epochs=1", "train.exchange=direct", "data.val=null", "checkpoint.every_s=null"]


def together(diary: Path, *, fatal: int = -1) -> list[str]:
    """Digits on two workers that make their first updates at the same time."""
    diary.mkdir()
    arguments = f"{{diary: {diary}, parties: 2, together: {NEEDED + 4}, fatal: {fatal}}}"
    patience = "supervise={start_timeout_s: 900, stall_timeout_s: 900, deadlock_timeout_s: 900, max_restarts: 0}"
    return [*DIGITS, patience, "model.class_path=meeting.Meeting", f"model.init_args={arguments}", "--procs", "2"]


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    window = ["--profile", "5:10"]
    job = jobs_folder / "digits.yaml"  # beside it lies the model
    job.write_text((HOME / "configs" / "digits.yaml").read_text())
    (jobs_folder / "meeting.py").write_text((JOBS / "meeting.py").read_text())
    alone = [str(job), *DIGITS, "--procs", "1"]
    return in_turn(
        jobs_folder / "jobs",
        {
            "two": [str(job), *together(jobs_folder / "two"), *window],
            "killed": [str(job), *together(jobs_folder / "killed", fatal=7), *window],
            "inline": [str(job), *DIGITS, "--procs", "0", *window],
            "short": [*alone, "train.max_updates=8", *window],
            "never": [*alone, "train.max_updates=8", "--profile", "5000:5010"],
            "resumed": ["--resume", str(jobs_folder / "jobs" / "short" / "run"), "train.max_updates=50", *window],
        },
    )


def profiled(job: Ended) -> Path:
    return job.run_dir / "profile"


@pytest.mark.processes
def test_two_workers_leave_a_trace_and_their_operators_each(ended: dict[str, Ended]) -> None:
    job = ended["two"]
    assert job.status == 0 and not job.left_behind
    for event in job.events("spawn"):
        own = json.loads((profiled(job) / f"worker-{event['worker']}.json").read_text())["traceEvents"]
        operations = [(one["name"], one["pid"]) for one in own if one.get("cat") == "cpu_op"]
        assert operations.count(("aten::addmm", event["pid"])) == 2 * LENGTH  # two layers
        assert "aten::addmm" in (profiled(job) / f"worker-{event['worker']}.operators.txt").read_text()


@pytest.mark.processes
def test_every_phase_of_a_workers_update_is_told(ended: dict[str, Ended]) -> None:
    for worker in range(2):
        found = read_phases(profiled(ended["two"]), worker)
        assert found is not None and found.is_complete
        for update in found.timed:
            assert set(IN_AN_UPDATE) <= set(update) <= set(PHASES)


@pytest.mark.processes
def test_the_table_is_shown_at_the_end_and_kept(ended: dict[str, Ended]) -> None:
    job = ended["two"]
    table = (profiled(job) / "phases.txt").read_text()
    assert table in job.stderr and "phases of an update" not in job.stdout
    for words in (*PHASES.values(), "worker 0", "worker 1", "all", "updates 20 to 24"):
        assert words in table
    assert "note:" not in table


@pytest.mark.processes
def test_a_worker_killed_in_its_window_is_named_and_the_other_is_told(ended: dict[str, Ended]) -> None:
    job = ended["killed"]
    (gone,) = (event["worker"] for event in job.events("exit") if "SIGKILL" in event["how"])
    assert job.status == 0
    assert f"note: of worker {gone} 0 of 5 updates were timed" in job.stderr
    assert {file.name for file in profiled(job).glob("worker-?.json")} == {f"worker-{1 - gone}.json"}
    assert f"worker {1 - gone}" in (profiled(job) / "phases.txt").read_text().splitlines()[1]


@pytest.mark.processes
def test_a_job_inside_the_parent_is_recorded_too(ended: dict[str, Ended]) -> None:
    found = read_phases(profiled(ended["inline"]), 0)
    assert found is not None and found.is_complete and len(found.timed) == LENGTH
    assert "update 9" in (profiled(ended["inline"]) / "worker-0.json").read_text()


@pytest.mark.processes
def test_a_job_that_ends_in_the_window_shows_what_there_is(ended: dict[str, Ended]) -> None:
    assert "note: of worker 0 0 of 5 updates were timed" in ended["short"].stderr
    assert "update 7" in (profiled(ended["short"]) / "worker-0.json").read_text()


@pytest.mark.processes
def test_a_window_the_job_never_reaches_is_said_at_the_end(ended: dict[str, Ended]) -> None:
    assert "profile 5000:5010: nothing was recorded, as no worker reached update 5,000" in ended["never"].stderr
    assert not list(profiled(ended["never"]).iterdir())


@pytest.mark.processes
def test_a_resumed_job_records_its_own_updates(ended: dict[str, Ended]) -> None:
    found = read_phases(profiled(ended["resumed"]), 0)
    assert found is not None and found.is_complete
    assert "note:" not in ended["resumed"].stderr and "updates 20 to 24" in ended["resumed"].stderr


@pytest.mark.parametrize("given", ["5", "5:5", "9:3", "a:b", "-1:3"])
def test_a_window_that_is_none_is_a_usage_error(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "--profile", given]) == 2
    assert f"--profile {given}: must be A:B" in capsys.readouterr().err
