"""The facts of a report before it draws: a run directory read, curves and bars as numbers, tables as rows."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild import host
from hogwild.config.load import DEFAULT, JOB_FILE, OVERRIDE, settings
from hogwild.monitoring.words import event_in_words, in_words, is_routine, row_of
from hogwild.report import report as pages
from hogwild.report.charts import (
    ABSENT,
    ALIVE,
    COLUMNS,
    HEIGHT,
    STARTING,
    PhaseBars,
    gaps,
    groups,
    page_data,
    page_timeline,
    phase_bars,
    staleness,
    thinned,
    to_json,
)
from hogwild.report.run_view import ColumnTable, RunView, read_run
from tests.helpers.run_records import BEGAN, RESOLVED, Story, add_lines, write_run

# ---- reading --------------------------------------------------------------------------------------------------------


def a_run(folder: Path, **story: object) -> RunView:
    return read_run(write_run(folder / "run", Story(**story)))  # type: ignore[arg-type]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A run without any record."""
    run = tmp_path / "bare"
    run.mkdir()
    (run / "resolved.yaml").write_text(RESOLVED)
    return run


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
    assert run.clock.starts[0] == run.events_of("resume")[0]["time"] < run.events_of("start")[1]["time"]
    times = run.clock.elapsed(run.records.train["time"])
    assert np.diff(times).min() > 0
    assert run.clock.elapsed(BEGAN + 40_000.0) == resume  # in the middle of the gap


BEFORE = st.sampled_from(["resume", "checkpoint-rejected", "data-read"])
ATTEMPTS = st.lists(
    st.tuples(
        st.floats(3600, 1e6),  # seconds between the attempts
        st.lists(BEFORE, max_size=3, unique=True),
        st.lists(st.sampled_from(["spawn", "ready", "exit", "evaluation", "end"]), min_size=1, max_size=4),
        st.lists(st.floats(0.001, 60), min_size=8, max_size=8),
    ),
    min_size=1,
    max_size=5,
)


@given(ATTEMPTS)
def test_running_time_is_the_sum_of_the_attempts_whatever_their_events(attempts: list[tuple]) -> None:
    """An attempt: perhaps a resume and the like, its start, other events; and a record after each of these."""
    with tempfile.TemporaryDirectory() as folder:
        at, running_s, events, records = BEGAN, 0.0, [], []
        for pause_s, before, after, steps in attempts:
            at += pause_s
            for kind, step_s in zip([*before, "start", *after], steps, strict=False):
                events.append({"time": at, "event": kind})
                if kind in after:
                    records.append({"time": at, "kind": "train", "updates": len(records)})
                at, running_s = at + step_s, running_s + step_s
            at, running_s = at - step_s, running_s - step_s  # nothing follows the last one
        (Path(folder) / "resolved.yaml").write_text(RESOLVED)
        add_lines(Path(folder) / "events.jsonl", *events)
        add_lines(Path(folder) / "metrics.jsonl", *records)
        run = read_run(Path(folder))
    elapsed = run.clock.elapsed(np.array([event["time"] for event in events])).tolist()
    assert elapsed[0] == 0 and elapsed[-1] == pytest.approx(running_s, abs=1e-3) == pytest.approx(run.span_s, abs=1e-3)
    assert all(earlier <= later for earlier, later in pairwise(elapsed))
    assert run.clock.starts.size == len(attempts) - 1


def test_a_resume_that_was_killed_before_its_start_is_an_attempt_of_its_own(bare: Path) -> None:
    kinds = ((0, "start"), (5, "exit"), (1000, "resume"), (2000, "checkpoint-rejected"), (2001, "resume"))
    lines = [{"time": BEGAN + at, "event": kind} for at, kind in (*kinds, (2002, "start"), (2012, "end"))]
    add_lines(bare / "events.jsonl", *lines)
    run = read_run(bare)
    assert run.clock.elapsed(np.array([line["time"] for line in lines])).tolist() == [0, 5, 5, 5, 6, 7, 17]


@pytest.mark.parametrize(
    ("state", "is_held", "words"),
    [
        ("running", True, "running: last record 5.0 s before this page"),
        ("", False, "lost: its process was killed, or the machine stopped"),
        ("failed", False, "failed: epochs"),
    ],
)
def test_the_headline_says_what_is_known_of_the_end(tmp_path: Path, state: str, is_held: bool, words: str) -> None:
    run = write_run(tmp_path / "run", Story(records=3, state=state, resume=False))
    lock = host.lock_file(run / ".lock")
    if not is_held:
        os.close(lock)
    found = read_run(run)
    found = replace(found, read_at=(found.last_heard or 0.0) + 5.0)
    assert pages.headline(found).state == words
    planned = "" if state == "failed" else " of 36 planned"
    assert pages.headline(found).sentence.startswith(f"30 updates{planned} and 960 samples by 4 workers")


def test_the_summary_of_the_attempt_before_is_not_that_of_a_resume_that_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=3, resume=False))
    assert read_run(run).is_over
    add_lines(run / "events.jsonl", {"time": time.time(), "event": "start"})
    (run / "status.json").write_text(json.dumps({"state": "building", "doing": "importing torch"}))
    lock = host.lock_file(run / ".lock")
    assert not read_run(run).is_over
    assert pages.headline(read_run(run)).state.startswith("importing torch: last record")
    os.close(lock)


def test_a_run_whose_status_is_lost_is_told_from_its_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=3, state="", resume=False))
    (run / "status.json").write_bytes(bytes(512))  # after a power cut
    assert pages.headline(read_run(run)).sentence.startswith("30 updates and 960 samples by 4 workers")


def test_the_best_evaluation_is_the_one_that_the_job_chose(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=20, evaluations=0, resume=False))
    for updates, loss, accuracy in ((10, 0.5, 0.7), (20, 0.3, 0.8), (30, 0.4, 0.9)):
        metrics = {"loss": loss, "accuracy": accuracy}
        add_lines(run / "metrics.jsonl", {"time": BEGAN, "kind": "evaluation", "updates": updates, **metrics})
    assert read_run(run).best_row is None
    summary = json.loads((run / "summary.json").read_text())
    for updates, row in ((30, 2), (7, None)):
        said = {"updates": updates, "metric": "accuracy", "value": 0.9, "epoch": 7, "checkpoint": "update-000000030"}
        (run / "summary.json").write_text(json.dumps(summary | {"best": said}))
        found = read_run(run)
        assert found.best_row == row
        assert pages.headline(found).tiles[0][:2] == ("best accuracy", "0.9")


def test_the_tile_of_the_best_value_says_its_epoch_and_where_it_lies(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=20, evaluations=1, checkpoints=1, resume=False))
    word, value, more = pages.headline(read_run(run)).tiles[0]
    (record,) = (
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"evaluation"' in line
    )
    assert (word, value) == ("best loss", f"{record['loss']:.4g}")
    assert more == f"epoch 1, accuracy {record['accuracy']:.4g} \N{RIGHTWARDS ARROW} checkpoints/best"


def test_a_ranking_metric_stands_beside_that_of_the_most_popular_items(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=20, evaluations=0, resume=False))
    add_lines(run / "metrics.jsonl", {"time": BEGAN, "kind": "evaluation", "updates": 10, "ndcg@10": 0.5, "auc": 0.75})
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"best": {"updates": 10, "metric": "ndcg@10", "value": 0.5, "epoch": 2, "checkpoint": ""}}
    (run / "summary.json").write_text(json.dumps(summary | {"popularity": {"ndcg@10": 0.25, "auc": 0.625}}))
    found = read_run(run)
    more = pages.headline(found).tiles[0][2]
    assert more.startswith("epoch 2, most popular items 0.25") and more.endswith("AUC 0.75 (popularity 0.625)")
    data = data_of(found)
    assert data["runs"][0]["tables"]["evaluations"]["columns"]["popularity.ndcg@10"] == [0.25]
    assert ("ndcg@10, most popular items", "0.25") in pages.summary(found).rows


# ---- numbers of curves ----------------------------------------------------------------------------------------------


def data_of(run: RunView) -> dict:
    """Return the data that the page's script gets."""
    found: dict = json.loads(to_json({**page_data([run], [run.name]), "timeline": page_timeline(run)}))
    return found


def test_the_page_has_every_record_in_order_on_each_axis(tmp_path: Path) -> None:
    run = a_run(tmp_path, records=120, workers=3)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    (found,) = data_of(run)["runs"]
    for kind, table in (("train", "train"), ("evaluation", "evaluations")):
        records = [line for line in lines if line["kind"] == kind]
        columns = found["tables"][table]["columns"]
        for name in ("updates", "samples"):
            assert columns[name] == [record[name] for record in records]
        for name in set(columns) - {"time", "updates", "samples"}:
            assert columns[name] == pytest.approx([record[name] for record in records], rel=1e-5)
        elapsed = run.clock.elapsed(np.array([record["time"] for record in records]))
        assert columns["time"] == pytest.approx(elapsed.tolist(), abs=2e-3)
    workers = found["tables"]["workers"]["columns"]
    for worker in range(3):
        for name in ("samples_per_s", "cpu", "pss_bytes"):
            wanted = [line["workers"][name][worker] for line in lines if "workers" in line]
            assert workers[f"{name}.{worker}"] == pytest.approx(wanted, rel=1e-5)
    assert found["tables"]["train"]["breaks"] == [73]  # the first record of the second attempt
    assert [mark["kind"] for mark in found["marks"]] == ["rollback", "resume"]
    assert found["marks"][1]["samples"] == run.events_of("resume")[0]["samples"]


def test_a_resume_without_samples_is_placed_by_its_updates(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Story(records=100, resume=False, rollback=False))
    add_lines(path / "events.jsonl", {"time": BEGAN + 50, "event": "resume", "updates": 505})
    (mark,) = data_of(read_run(path))["runs"][0]["marks"]
    assert (mark["updates"], mark["samples"]) == (505, 505 * 32)


def test_further_losses_of_a_training_step_are_columns(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Story(records=5, resume=False, rollback=False))
    add_lines(path / "metrics.jsonl", {"time": BEGAN + 9, "kind": "train", "updates": 60, "losses": {"kl": 0.25}})
    found = data_of(read_run(path))
    assert found["runs"][0]["tables"]["train"]["columns"]["losses.kl"] == [None] * 5 + [0.25]


def test_a_page_has_the_parts_for_which_something_was_recorded(bare: Path, tmp_path: Path) -> None:
    full = a_run(tmp_path / "full", records=20)
    assert groups(page_data([full], ["full"])) == {"learning", "throughput", "resources", "staleness"}
    assert groups(page_data([read_run(bare)], ["run"])) == set()
    add_lines(bare / "metrics.jsonl", {"time": BEGAN, "kind": "train", "losses": {"kl": 0.25}})
    assert groups(page_data([read_run(bare)], ["run"])) == {"learning"}


def test_a_spike_of_one_record_is_in_the_thinned_curve() -> None:
    x = np.arange(100_000.0)
    y, other = np.sin(x / 9000), np.cos(x / 500)
    y[[33_333, 77_777]] = 50, -50
    other[44_444], other[3] = 9, np.nan
    rows = thinned([y, other], 4000)
    assert rows.size <= 4002
    assert {0, 33_333, 44_444, 77_777, 99_999} <= set(rows.tolist())
    assert np.diff(rows).min() > 0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_lowest_and_the_highest_of_every_stretch(values: list[float], most: int) -> None:
    y = np.array(values)
    kept = y[thinned([y], most)]
    assert (kept.min(), kept.max(), kept[0], kept[-1]) == (y.min(), y.max(), y[0], y[-1])
    assert kept.size <= max(most + 2, 4) or y.size <= most


def test_a_curve_is_broken_where_nobody_recorded_but_not_where_records_become_rarer() -> None:
    x = np.concatenate([np.arange(10.0), np.arange(100.0, 110.0)])
    assert gaps(x).tolist() == [10]
    rarer = np.cumsum([1.0] * 50 + [30.0] * 20)
    assert gaps(rarer).tolist() == []
    assert gaps(np.array([5.0])).tolist() == []


def test_json_has_null_for_what_is_not_finite_and_cannot_end_the_script() -> None:
    text = to_json({"</script>": np.array([1.0, np.nan, np.inf, 1234567.891234, 1e-12, 0.123456789]), "x": "<!--"})
    assert "<" not in text
    assert json.loads(text) == {"</script>": [1, None, None, 1234567.891, 1e-12, 0.123457], "x": "<!--"}


def test_percentiles_of_a_histogram_are_the_values_themselves(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Story(records=5, per_worker=False, resume=False))
    assert staleness(read_run(path)) is None
    for counts, p50, p99 in (([50, 0, 49, 0, 0, 1], 0, 2), ([49, 0, 49, 0, 0, 2, 0], 2, 5)):
        add_lines(path / "metrics.jsonl", {"kind": "staleness", "counts": counts})
        found = staleness(read_run(path))
        assert found is not None and (found["p50"], found["p99"], len(found["counts"])) == (p50, p99, 6)


def shares(found: PhaseBars, worker: int, begin_s: float, end_s: float) -> dict[str, float]:
    """The part of each word in a stretch of a worker's bar."""
    begin, end = (round(at / found.span_s * COLUMNS) for at in (begin_s, end_s))
    places = found.pixels[worker][:, begin:end]
    words = np.array(found.words)[places]  # several places may have the same word
    parts = {word: float((words == word).mean()) for word in found.words}
    return {word: round(part, 2) for word, part in parts.items() if part > 0.005}


@pytest.fixture
def bars_of(bare: Path) -> Callable[..., PhaseBars]:
    """Two workers: 1 dies at 100 s and is back at 150 s, after 10 s of starting."""

    def make(phases: list[list[str]]) -> PhaseBars:
        both = [(0, 0), (0, 1)]
        events = [{"time": 0.0, "event": "start"}]
        events += [{"time": at, "event": kind, "worker": w} for kind in ("spawn", "ready") for at, w in both]
        told = ((100.0, "exit"), (140.0, "spawn"), (150.0, "ready"))
        add_lines(bare / "events.jsonl", *events, *({"time": at, "event": kind, "worker": 1} for at, kind in told))
        add_lines(bare / "events.jsonl", {"time": 200.0, "event": "end"})
        step = 200.0 / max(1, len(phases))
        for number, names in enumerate(phases, 1):
            add_lines(bare / "metrics.jsonl", {"time": number * step, "kind": "train", "workers": {"phase": names}})
        return phase_bars(read_run(bare))

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


def test_without_events_a_record_that_says_starting_is_believed(bare: Path) -> None:
    for at in range(1, 11):
        phase = "booting" if at < 6 else "working"
        add_lines(bare / "metrics.jsonl", {"time": float(at), "kind": "train", "workers": {"phase": [phase]}})
    bars = phase_bars(read_run(bare))
    assert {bars.words[place] for place in np.unique(bars.pixels)} - {ABSENT} == {STARTING, "working"}


def test_records_that_tell_nothing_of_workers_leave_their_bars_and_curves_whole(bare: Path) -> None:
    """Each worker is told of once in 30 s, the job once a second."""
    for at in range(1, 301):
        of_worker = {"phase": ["working" if at <= 150 else "waiting"], "samples_per_s": [float(at)]}
        told = {"workers": of_worker} if at % 30 == 0 else {}
        add_lines(bare / "metrics.jsonl", {"time": float(at), "kind": "train", "samples": at, **told})
    found = read_run(bare)
    assert shares(phase_bars(found), 0, 5, 140) == {"working": 1.0} and shares(phase_bars(found), 0, 160, 290) == {
        "waiting": 1.0
    }
    speeds = found.records.workers["samples_per_s"][0].tolist()
    assert speeds == found.records.told["samples"].tolist() == [float(at) for at in range(30, 301, 30)]


def test_without_phases_a_bar_still_shows_that_the_worker_was_there(bars_of: Callable[..., PhaseBars]) -> None:
    found = bars_of([])
    assert shares(found, 0, 0, 200) == {ALIVE: 1.0}
    assert shares(found, 1, 101, 139) == {ABSENT: 1.0}


def test_the_timeline_of_the_page_has_the_bars_and_the_deaths(bars_of: Callable[..., PhaseBars], bare: Path) -> None:
    bars_of([["working", "waiting"]] * 20)
    found = json.loads(to_json(page_timeline(read_run(bare))))
    for bar in found["bars"]:
        assert sum(columns for columns, *_ in bar) == COLUMNS
        assert all(sum(parts[1::2]) == HEIGHT for _, *parts in bar)
    words = [found["words"][parts[0]] for _, *parts in found["bars"][1] if len(parts) == 2]
    assert words == ["waiting", ABSENT, STARTING, "waiting"]
    assert [(mark["worker"], mark["at"], mark["text"]) for mark in found["marks"]] == [(1, 100, "worker 1 died")]


# ---- words and tables -----------------------------------------------------------------------------------------------


def test_keys_and_events_are_said_in_words() -> None:
    assert [in_words(key) for key in ("samples_per_s", "metrics.top5", "host.new_thing", "warm_up_s")] == [
        *("samples per second", "top5, last evaluation", "host: new thing", "warm up")
    ]
    event = {
        "time": 1.0,
        "event": "exit",
        "worker": 3,
        "pid": 9,
        "kind": "died",
        "how": "killed by SIGKILL",
        "freed": 2,
    }
    assert event_in_words(event) == ("worker 3 died", "killed by SIGKILL; batches reassigned 2")
    assert event_in_words({"time": 1.0, "event": "new-thing", "loader": 1}) == ("new thing of loader 1", "")


@pytest.mark.parametrize(
    ("event", "row", "routine"),
    [
        ({"event": "exit", "worker": 0, "kind": "died"}, "trouble", False),
        ({"event": "exit", "worker": 0, "kind": "left"}, "resizes", True),
        ({"event": "loader-exit", "loader": 0}, "trouble", False),
        ({"event": "loader-ready", "loader": 0}, "other", True),
        ({"event": "request", "ask": "resize"}, "resizes", False),
        ({"event": "request", "ask": "predictor"}, "other", False),
        ({"event": "checkpoint-failed"}, "trouble", False),
        ({"event": "checkpoint"}, "checkpoints", True),
        ({"event": "resume"}, "restarts", False),
        ({"event": "new-thing"}, "other", False),
    ],
)
def test_an_event_has_one_row_on_the_page_and_in_the_report(event: dict[str, str], row: str, routine: bool) -> None:
    assert (row_of(event), is_routine(event)) == (row, routine)


def test_the_parts_of_the_workers_are_those_of_their_records(tmp_path: Path) -> None:
    run = a_run(tmp_path, records=200, workers=3, resume=False)
    rows = pages.workers(run).rows
    shares = [row[1].parts[0][1] for row in rows if isinstance(row[1], pages.Bar)]
    assert sum(shares) == pytest.approx(1)
    assert shares[1] == pytest.approx(300 / 2100, abs=0.02)  # worker 1 is slow
    assert [row[3] for row in rows] == [
        str(sum(event["worker"] == worker for event in run.events_of("exit"))) for worker in range(3)
    ]


def test_every_setting_says_where_it_comes_from(tmp_path: Path) -> None:
    run = a_run(tmp_path, records=1)
    found = {one.key: one.origin for one in settings(run.resolved, run.job_text)}
    assert found["optimizer.init_args.lr"] == JOB_FILE  # 1e-3 there, 0.001 in resolved.yaml
    assert found["train.epochs"] == OVERRIDE  # 3 in the file
    assert found["train.procs"] == OVERRIDE
    assert found["train.grad_clip"] == DEFAULT


def test_at_most_two_hundred_events_are_told_and_all_are_counted(tmp_path: Path) -> None:
    told = pages.events(a_run(tmp_path, records=300, deaths=400, checkpoints=300, resume=False))
    assert len(told.rows) == pages.MOST_EVENTS
    assert "in between" in told.note
    assert "400 exit" in told.note and "300 checkpoint" in told.note
    assert (told.rows[0][1], told.rows[-1][1]) == ("job started", "job ended")
