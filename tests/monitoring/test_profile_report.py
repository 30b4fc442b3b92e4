"""The results of `--profile`: the table of phases. No process, no profiler; what torch
really writes is in test_profile.py."""

import json
from pathlib import Path

import pytest

from hogwild.cli.arguments import profile_window
from hogwild.errors import UsageError
from hogwild.monitoring.profile_report import (
    PhaseRecord,
    Window,
    clear,
    phase_table,
    phases_name,
    read_phases,
    report,
)

WINDOW = Window(5, 10)


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


def test_many_workers_have_no_columns_of_their_own() -> None:
    records = [PhaseRecord(worker, 70 + worker, timed=[UPDATE]) for worker in range(7)]
    assert "worker 5" in phase_table(records[:6], WINDOW)[1]
    assert phase_table(records, WINDOW)[1].split()[-2:] == ["all", "median"]
    assert "worker" not in phase_table(records, WINDOW)[1]
    assert row(phase_table(records, WINDOW), "updates measured") == ["7", "7"]


def test_without_a_measured_update_there_is_no_table() -> None:
    assert phase_table([PhaseRecord(0, 70)], WINDOW) == []


# ---- files -----------------------------------------------------------------------------------------------------------


def leave(folder: Path, record: PhaseRecord) -> None:
    (folder / phases_name(record.worker)).write_text(json.dumps(record.to_json()))


FIVE = [UPDATE] * 5


def test_a_worker_that_ended_too_early_is_named(tmp_path: Path) -> None:
    leave(tmp_path, PhaseRecord(0, 70, FIVE, is_complete=True))
    leave(tmp_path, PhaseRecord(1, 80))
    leave(tmp_path, PhaseRecord(2, 90, FIVE[:2]))
    told = report(tmp_path, 4, WINDOW)
    assert "note: of worker 1 0 of 5 updates were timed: it ended before updates 20 to 24 were over" in told
    assert "note: of worker 2 2 of 5 updates were timed" in told
    assert "note: worker 3 is missing: it ended before its update 5" in told
    assert told.count("note:") == 3
    assert (tmp_path / "phases.txt").read_text().splitlines() == told.splitlines()[:-1]


def test_a_full_disk_is_a_warning(tmp_path: Path) -> None:
    leave(tmp_path, PhaseRecord(0, 70, FIVE, is_complete=True))
    (tmp_path / "phases.txt").mkdir()
    assert report(tmp_path, 1, WINDOW).startswith("warning: cannot write ")


def test_a_window_that_nobody_reached_is_said(tmp_path: Path) -> None:
    told = report(tmp_path, 2, Window(5000, 5010))
    assert told == "profile 5000:5010: nothing was recorded, as no worker reached update 5,000"
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_emptied_of_what_an_earlier_attempt_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    clear(folder)
    leave(folder, PhaseRecord(0, 70))
    clear(folder)
    assert list(folder.iterdir()) == []


def test_phases_come_back_as_they_were_written_and_half_a_file_is_none(tmp_path: Path) -> None:
    record = PhaseRecord(3, 70, [UPDATE, UPDATE], is_complete=True)
    leave(tmp_path, record)
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
