"""What a report knows before it draws: a run directory read, curves and bars as numbers, tables as rows."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hogwild.report import tables
from hogwild.report.columns import PIXEL_COLUMNS, curve, percentile, smooth
from hogwild.report.figures import best_updates
from hogwild.report.run_data import ColumnTable, Run, read_run
from hogwild.report.tables import DEFAULT, JOB_FILE, OVERRIDE, settings
from hogwild.report.timeline import ABSENT, ALIVE, COLUMNS, STARTING, PhaseBars, phase_bars
from tests.helpers.run_records import BEGAN, RESOLVED, Story, add_lines, write_run

# ---- reading --------------------------------------------------------------------------------------------------------


def a_run(folder: Path, **story: object) -> Run:
    return read_run(write_run(folder / "run", Story(**story)))  # type: ignore[arg-type]


def test_a_column_is_nan_where_a_record_had_no_number() -> None:
    table = ColumnTable()
    for record in ({"a": 1}, {"b": 2.5, "a": None}, {"a": True, "b": "x"}, {"a": 4}):
        table.add(record.items())
    np.testing.assert_array_equal(table["a"], [1, np.nan, np.nan, 4])
    np.testing.assert_array_equal(table["b"], [np.nan, 2.5, np.nan, np.nan])
    np.testing.assert_array_equal(table["c"], [np.nan] * 4)
    assert table.names == ["a", "b"]
    assert "c" not in table


def test_the_time_between_an_attempt_and_its_resume_is_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path, records=100)
    assert 100 < run.span_s < 110
    (resume,) = run.clock.elapsed(run.clock.starts)
    assert 60 < resume < 66
    times = run.clock.elapsed(run.records.train["time"])
    assert np.diff(times).min() > 0
    assert run.clock.elapsed(BEGAN + 40_000.0) == resume  # in the middle of the gap


@pytest.mark.parametrize(
    ("state", "heard_s", "words"),
    [
        ("running", 5.0, "running: last record"),
        ("", 5.0, "running: last record"),
        ("", 5000.0, "interrupted: no end was recorded"),
        ("failed", 5000.0, "failed: epochs"),
    ],
)
def test_the_headline_says_what_is_known_of_the_end(tmp_path: Path, state: str, heard_s: float, words: str) -> None:
    run = write_run(tmp_path / "run", Story(records=3, state=state, resume=False))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"time": time.time() - heard_s}))
    found = tables.headline(read_run(run))
    assert found.state.startswith(words)
    assert found.sentence.startswith("30 updates" + ("" if state == "failed" else " of 36 planned"))


def test_the_summary_of_the_attempt_before_is_not_that_of_a_resume_that_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=3, resume=False))
    assert read_run(run).is_over
    add_lines(run / "events.jsonl", {"time": time.time(), "event": "start"})
    assert not read_run(run).is_over
    assert tables.headline(read_run(run)).state.startswith("starting: last record")


def test_the_best_evaluation_is_the_one_that_the_job_would_choose(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=20, evaluations=0, resume=False))
    for updates, loss, accuracy in ((10, 0.5, 0.7), (20, 0.3, 0.8), (30, 0.4, 0.9)):
        metrics = {"loss": loss, "accuracy": accuracy}
        add_lines(run / "metrics.jsonl", {"time": BEGAN, "kind": "evaluation", "updates": updates, **metrics})
    found = []
    for evaluate in ("{}", "{monitor: accuracy}", "{monitor: loss, mode: max}"):
        (run / "resolved.yaml").write_text(f"{RESOLVED}evaluate: {evaluate}\n")
        found.append(best_updates(read_run(run)))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"best": {"updates": 30}}))
    assert [*found, best_updates(read_run(run))] == [20, 30, 10, 30]


# ---- numbers of pictures --------------------------------------------------------------------------------------------


def test_a_spike_of_one_record_is_in_the_thinned_curve() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 9000)
    y[[33_333, 77_777]] = 50, -50
    line = curve(x, y)
    assert line.x.size <= 4 * PIXEL_COLUMNS
    assert {50.0, -50.0} <= set(line.y)
    assert (line.x[0], line.x[-1]) == (0, 99_999)
    assert np.diff(line.x).min() > 0


def test_a_curve_is_broken_where_nobody_recorded_and_skips_what_is_not_finite() -> None:
    x = np.concatenate([np.arange(10.0), np.arange(100.0, 110.0)])
    y = x.copy()
    y[3] = np.nan
    line = curve(x, y)
    assert np.flatnonzero(np.isnan(line.x)).tolist() == [9]
    assert 3.0 not in line.x
    assert not curve(x * np.nan, y).x.size
    assert smooth(x, y) is None


def test_a_smooth_line_is_the_mean_of_stretches() -> None:
    line = smooth(np.arange(6000.0), np.tile([0.0, 2.0], 3000))
    assert line is not None
    np.testing.assert_allclose(line.y, 1.0)
    assert np.diff(line.x).min() > 0


def test_percentiles_of_a_histogram_are_the_values_themselves() -> None:
    counts = np.array([50, 0, 49, 0, 0, 1])
    assert [percentile(counts, share) for share in (0.5, 0.51, 0.99, 1.0)] == [0, 2, 2, 5]
    assert percentile(np.zeros(4), 0.5) == 0


def shares(found: PhaseBars, worker: int, begin_s: float, end_s: float) -> dict[str, float]:
    """The part of each word in a stretch of a worker's bar."""
    begin, end = (round(at / found.span_s * COLUMNS) for at in (begin_s, end_s))
    places = found.pixels[worker][:, begin:end]
    words = np.array(found.words)[places]  # several places may have the same word
    parts = {word: float((words == word).mean()) for word in found.words}
    return {word: round(part, 2) for word, part in parts.items() if part > 0.005}


@pytest.fixture
def bars_of(tmp_path: Path) -> Callable[..., PhaseBars]:
    """Two workers: 1 dies at 100 s and is back at 150 s, after 10 s of starting."""

    def make(phases: list[list[str]]) -> PhaseBars:
        run = tmp_path / "run"
        run.mkdir()
        (run / "resolved.yaml").write_text(RESOLVED)
        both = [(0, 0), (0, 1)]
        events = [{"time": 0.0, "event": "start"}]
        events += [{"time": at, "event": kind, "worker": w} for kind in ("spawn", "ready") for at, w in both]
        told = ((100.0, "exit"), (140.0, "spawn"), (150.0, "ready"))
        add_lines(run / "events.jsonl", *events, *({"time": at, "event": kind, "worker": 1} for at, kind in told))
        add_lines(run / "events.jsonl", {"time": 200.0, "event": "end"})
        step = 200.0 / max(1, len(phases))
        for number, names in enumerate(phases, 1):
            add_lines(run / "metrics.jsonl", {"time": number * step, "kind": "train", "workers": {"phase": names}})
        return phase_bars(read_run(run))

    return make


def test_a_worker_that_is_dead_has_no_bar_whatever_a_record_says(bars_of: Callable[..., PhaseBars]) -> None:
    found = bars_of([["working", "working"]] * 20)
    assert shares(found, 0, 0, 200) == {"working": 1.0}
    assert shares(found, 1, 0, 99) == {"working": 1.0}
    assert shares(found, 1, 101, 139) == {ABSENT: 1.0}
    assert shares(found, 1, 141, 149) == {STARTING: 1.0}


def test_a_bar_shows_phases_in_proportion_where_records_are_denser_than_pixels(
    bars_of: Callable[..., PhaseBars],
) -> None:
    found = bars_of([["working", "working"]] * 3 * 2 + [["waiting", "working"], ["working", "working"]] * 4000)
    assert shares(found, 0, 20, 180) == {"working": 0.5, "waiting": 0.5}


def test_a_record_made_just_after_a_death_says_nothing_about_the_moments_before(
    bars_of: Callable[..., PhaseBars],
) -> None:
    found = bars_of([["working", "booting" if 102 <= at <= 154 else "working"] for at in range(4, 204, 4)])
    assert shares(found, 1, 90, 99.9) == {"working": 1.0}
    assert shares(found, 1, 141, 149) == {STARTING: 1.0}
    assert shares(found, 1, 151, 200) == {"working": 1.0}


def test_without_events_a_record_that_says_starting_is_believed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "resolved.yaml").write_text(RESOLVED)
    for at in range(1, 11):
        phase = "booting" if at < 6 else "working"
        add_lines(run / "metrics.jsonl", {"time": float(at), "kind": "train", "workers": {"phase": [phase]}})
    assert phase_bars(read_run(run)).used() == [STARTING, "working"]


def test_records_that_tell_nothing_of_workers_leave_their_bars_and_curves_whole(tmp_path: Path) -> None:
    """Each worker is told of once in 30 s, the job once a second."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "resolved.yaml").write_text(RESOLVED)
    for at in range(1, 301):
        of_worker = {"phase": ["working" if at <= 150 else "waiting"], "samples_per_s": [float(at)]}
        told = {"workers": of_worker} if at % 30 == 0 else {}
        add_lines(run / "metrics.jsonl", {"time": float(at), "kind": "train", "samples": at, **told})
    found = read_run(run)
    assert shares(phase_bars(found), 0, 5, 140) == {"working": 1.0} and shares(phase_bars(found), 0, 160, 290) == {
        "waiting": 1.0
    }
    speeds = found.records.workers["samples_per_s"][0].tolist()
    assert speeds == found.records.told["samples"].tolist() == [float(at) for at in range(30, 301, 30)]


def test_without_phases_a_bar_still_shows_that_the_worker_was_there(bars_of: Callable[..., PhaseBars]) -> None:
    found = bars_of([])
    assert shares(found, 0, 0, 200) == {ALIVE: 1.0}
    assert shares(found, 1, 101, 139) == {ABSENT: 1.0}


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_every_setting_says_where_it_comes_from(tmp_path: Path) -> None:
    found = {one.key: one.origin for one in settings(a_run(tmp_path, records=1))}
    assert found["optimizer.init_args.lr"] == JOB_FILE  # 1e-3 there, 0.001 in resolved.yaml
    assert found["train.epochs"] == OVERRIDE  # 3 in the file
    assert found["train.procs"] == OVERRIDE
    assert found["train.grad_clip"] == DEFAULT


def test_at_most_two_hundred_events_are_told_and_all_are_counted(tmp_path: Path) -> None:
    told, counted = tables.events(a_run(tmp_path, records=300, deaths=400, checkpoints=300, resume=False))
    assert len(told.rows) == tables.MOST_EVENTS
    assert "x exit" in told.note
    assert (told.rows[0][2], told.rows[-1][2]) == ("start", "end")
    assert dict(counted.rows)["exit"] == "400"
    assert dict(counted.rows)["checkpoint"] == "300"
