"""What comes out of `--profile`: one trace out of several, and the table of phases. No process, no profiler; what torch
really writes is in test_profile.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli.arguments import profile_window
from hogwild.errors import UsageError
from hogwild.monitoring.profile_report import (
    PhaseRecord,
    Window,
    clear,
    merged,
    phase_table,
    phases_name,
    read_phases,
    report,
    trace_name,
)

WINDOW = Window(5, 10)


def trace(pid: int, base_ns: int = 1_000, start_us: float = 10.0) -> dict[str, Any]:
    """One operation, an arrow, and the profiler's own rows, as torch writes them."""
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": base_ns,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "ts": 0.0, "pid": pid, "tid": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "thread_name", "ts": 0.0, "pid": pid, "tid": pid, "args": {"name": "thread"}},
            {"ph": "X", "name": "aten::add", "pid": pid, "tid": pid, "ts": start_us, "dur": 2.0},
            {"ph": "s", "id": 1, "pid": pid, "tid": pid, "ts": start_us, "cat": "fwdbwd", "name": "fwdbwd"},
            {
                "ph": "X",
                "name": "PyTorch Profiler (0)",
                "pid": "Spans",
                "tid": "PyTorch Profiler",
                "ts": 1.0,
                "dur": 9.0,
            },
        ],
    }


def merge(*traces: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads("".join(merged(traces)))
    return whole


def of(whole: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in whole["traceEvents"] if event["name"] == name]


# ---- one trace of all ------------------------------------------------------------------------------------------------


def test_a_merged_trace_has_every_workers_events_under_its_own_name() -> None:
    whole = merge((0, trace(70)), (2, trace(90)))
    names = {event["pid"]: event["args"]["name"] for event in of(whole, "process_name")}
    assert names == {70: "worker 0", 90: "worker 2"}
    assert [event["pid"] for event in of(whole, "aten::add")] == [70, 90]
    assert len(of(whole, "thread_name")) == 2


def test_times_of_traces_with_different_bases_lie_on_one_axis() -> None:
    whole = merge((0, trace(70, base_ns=5_000_000, start_us=10.0)), (1, trace(90, base_ns=2_000_000, start_us=3_010.0)))
    assert whole["baseTimeNanoseconds"] == 5_000_000
    assert [event["ts"] for event in of(whole, "aten::add")] == [10.0, 10.0]  # both at 5.01 ms


def test_arrows_of_two_workers_are_not_confused() -> None:
    whole = merge((0, trace(70)), (1, trace(90)))
    assert len({event["id"] for event in of(whole, "fwdbwd")}) == 2


def test_the_profilers_own_rows_are_told_apart() -> None:
    whole = merge((0, trace(70)), (1, trace(90)))
    assert [event["pid"] for event in of(whole, "PyTorch Profiler (0)")] == ["worker 0: Spans", "worker 1: Spans"]


def test_a_process_number_that_came_twice_is_two_processes() -> None:
    whole = merge((0, trace(70)), (1, trace(70)), (2, trace(71)))
    pids = [event["pid"] for event in of(whole, "aten::add")]
    assert len(set(pids)) == 3 and pids[0] == 70
    assert {event["pid"]: event["args"]["name"] for event in of(whole, "process_name")} == {
        pid: f"worker {worker}" for worker, pid in enumerate(pids)
    }


def test_nothing_merged_is_nothing() -> None:
    assert "".join(merged([])) == ""


# ---- the table -------------------------------------------------------------------------------------------------------

UPDATE = {"gather": 10_000, "forward": 40_000, "backward": 30_000, "apply": 20_000}


def row(lines: list[str], words: str) -> list[str]:
    (line,) = (line for line in lines if line.strip().startswith(words))
    return line.replace(words, "").replace("%", "").split()


def test_the_table_has_the_mean_and_the_share_of_every_phase_for_each_worker_and_for_all() -> None:
    twice = {phase: 2 * ns for phase, ns in UPDATE.items()}
    records = [PhaseRecord(0, 70, timed=[UPDATE, UPDATE]), PhaseRecord(1, 90, timed=[twice, twice, twice])]
    lines = phase_table(records, WINDOW)
    assert "updates 20 to 24 of each worker" in lines[0]
    assert lines[1].split()[-6:] == ["worker", "0", "worker", "1", "all", "median"]
    assert row(lines, "gathering") == ["10.0", "10.0", "20.0", "10.0", "16.0", "10.0", "20.0", "10.0"]
    assert row(lines, "waiting for work") == ["0.0", "0.0"] * 4
    assert row(lines, "an update") == ["100.0", "100.0", "200.0", "100.0", "160.0", "100.0", "200.0", "100.0"]
    assert row(lines, "all but forward, backward")[::2] == ["30.0", "60.0", "48.0", "60.0"]
    assert row(lines, "updates measured") == ["2", "3", "5", "5"]


def test_an_update_that_was_held_up_moves_the_mean_and_not_the_median() -> None:
    held = UPDATE | {"gather": 40_010_000}
    lines = phase_table([PhaseRecord(0, 70, timed=[UPDATE, held, UPDATE, UPDATE])], WINDOW)
    assert row(lines, "gathering")[::2] == ["10,010.0", "10,010.0", "10.0"]


def test_shares_add_up_and_a_pause_is_no_part_of_an_update() -> None:
    lines = phase_table([PhaseRecord(0, 70, timed=[UPDATE | {"pause": 9_000_000, "wait": 100_000}])], WINDOW)
    assert row(lines, "an update")[:2] == ["200.0", "100.0"]
    assert row(lines, "waiting for work")[:2] == ["100.0", "50.0"]
    assert row(lines, "beside: in pauses") == ["9,000.0"] * 3
    assert "pauses" not in "\n".join(phase_table([PhaseRecord(0, 70, timed=[UPDATE])], WINDOW))


def test_what_the_profiler_slowed_is_marked_and_not_mixed_with_the_rest() -> None:
    slow = {phase: 3 * ns for phase, ns in UPDATE.items()}
    both, alone = PhaseRecord(0, 70, [slow], [UPDATE]), PhaseRecord(1, 90, [slow])
    lines = phase_table([both, alone], WINDOW)
    assert "worker 1*" in lines[1] and "worker 0*" not in lines[1]
    assert row(lines, "forward")[::2] == ["40.0", "120.0", "40.0", "40.0"]
    assert lines[-2].startswith("* with the profiler running")
    assert lines[-1] == "with tracing, an update took 3.00 x as long (median)"
    assert "all*" in phase_table([alone], WINDOW)[1]


def test_many_workers_have_their_columns_in_the_file_only() -> None:
    records = [PhaseRecord(worker, 70 + worker, timed=[UPDATE]) for worker in range(7)]
    assert "worker 6" in phase_table(records, WINDOW)[1]
    assert phase_table(records, WINDOW, widest=6)[1].split()[-2:] == ["all", "median"]
    assert "worker" not in phase_table(records, WINDOW, widest=6)[1]


def test_without_a_measured_update_there_is_no_table() -> None:
    assert phase_table([PhaseRecord(0, 70)], WINDOW) == []


# ---- files -----------------------------------------------------------------------------------------------------------


def leave(folder: Path, record: PhaseRecord, written: str | None) -> None:
    """What a worker leaves: its phases, and a trace or none."""
    (folder / phases_name(record.worker)).write_text(json.dumps(record.to_json()))
    if written is not None:
        (folder / trace_name(record.worker)).write_text(written)


FIVE = [UPDATE] * 5


def test_a_worker_that_is_missing_is_named_and_the_others_are_merged(tmp_path: Path) -> None:
    leave(tmp_path, PhaseRecord(0, 70, FIVE, FIVE, is_complete=True), json.dumps(trace(70)))
    leave(tmp_path, PhaseRecord(1, 80), None)
    leave(tmp_path, PhaseRecord(2, 90, FIVE[:2]), json.dumps(trace(90)))
    leave(tmp_path, PhaseRecord(3, 91, FIVE), '{"traceEvents": [')
    told = report(tmp_path, 5, WINDOW)
    whole = json.loads((tmp_path / "merged.json").read_text())
    assert {event["pid"] for event in of(whole, "aten::add")} == {70, 90}
    assert "worker 1 is missing: it entered the window, and wrote no trace" in told
    assert "of worker 2 2 of 5 updates were traced" in told
    assert "worker 3 is missing: it entered the window, and worker-3.json cannot be read" in told
    assert "worker 4 is missing: it ended before its update 5" in told
    assert "worker 0 is missing" not in told
    assert (tmp_path / "phases.txt").read_text().splitlines() == told.splitlines()[:-1]
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_window_that_nobody_reached_is_said(tmp_path: Path) -> None:
    told = report(tmp_path, 2, Window(5000, 5010))
    assert told == "profile 5000:5010: nothing was recorded, as no worker reached update 5,000"
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_emptied_of_what_an_earlier_attempt_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    clear(folder)
    leave(folder, PhaseRecord(0, 70), "{}")
    clear(folder)
    assert list(folder.iterdir()) == []


def test_phases_come_back_as_they_were_written_and_half_a_file_is_none(tmp_path: Path) -> None:
    record = PhaseRecord(3, 70, [UPDATE], [UPDATE, UPDATE], is_complete=True)
    leave(tmp_path, record, None)
    assert read_phases(tmp_path, 3) == record
    (tmp_path / phases_name(3)).write_text('{"worker": 3')
    assert read_phases(tmp_path, 3) is None and read_phases(tmp_path, 4) is None


# ---- the command line ------------------------------------------------------------------------------------------------


def test_a_window_is_two_numbers() -> None:
    assert profile_window("5:10") == WINDOW and profile_window(None) is None


@pytest.mark.parametrize(
    "given",
    ["5", "5:5", "9:3", "a:b", "-1:3", "", ":", "5:", "1:2:3", "1.5:3", "0:1001", "\u0663:\u0665", "1:" + "9" * 99],
)
def test_a_window_that_is_none_is_refused_with_its_place_value_and_rule(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile_window(given)
    assert str(caught.value).startswith(f"--profile {given}: must be A:B, whole numbers with 0 <= A < B")
