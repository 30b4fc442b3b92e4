"""The records of a running job: one snapshot, the same numbers in metrics.jsonl, status.json and metrics.prom;
and the time that each worker spent in each phase."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hogwild.monitoring import prometheus
from hogwild.monitoring.run_status import JobSnapshot, ServerSnapshot, WorkerSnapshot, workers_record
from hogwild.shared_memory import scoreboard
from hogwild.shared_memory.scoreboard import Phase, Row, Scoreboard
from hogwild.workers.session.journal import Journal
from hogwild.workers.session.progress import SampleRate, _percentiles, workers_gap_s
from tests.helpers.jobs import Ended, in_turn
from tests.helpers.run_status import no_start_up

LINE = re.compile(r'^([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Strictly: HELP, TYPE, then the samples of one family, each family once; the file ends with a line end."""
    assert text.endswith("\n") and "\n\n" not in text
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    families: list[str] = []
    helped = kind = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped, kind = line.split(" ")[2], ""
            assert helped not in families and len(line.split(" ", 3)[3]) > 1
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped and kind in ("counter", "gauge") and (kind == "counter") == name.endswith("_total")
            families.append(name)
        else:
            match = LINE.match(line)
            assert match is not None and match[1] == families[-1] and kind, line
            labels = frozenset(LABEL.findall(match[2]))
            assert (match[1], labels) not in found, f"twice: {line}"
            found[match[1], labels] = float(match[3])
    return found


def test_what_a_scraper_reads_is_valid_and_complete() -> None:
    workers = (
        WorkerSnapshot(0, "training", phases={"working": 0.5}, cpu=1.5),
        WorkerSnapshot(1, "empty", incarnation=3),
    )
    made = JobSnapshot(
        name='a "quoted" \\ name',
        run_dir="/a\nb",
        state="running",
        wall_s=1.5,
        left_s=None,
        epoch=1,
        epochs=2,
        position=1.0,
        updates=2**40,
        planned_updates=2**41,
        samples=7,
        progress=0.5,
        samples_per_s=1e-7,
        loss=float("nan"),
        lr=0.1,
        metrics={"loss": float("inf"), "my.metric": 2.0},
        workers=workers,
        server=ServerSnapshot(76, "waiting", 90 << 20),
    )
    found = parsed(prometheus.exposition(made))
    common = {("job", r"a \"quoted\" \\ name"), ("run", r"/a\nb")}

    def of(name: str, **labels: str) -> float:
        return found[f"hogwild_{name}", frozenset(common | set(labels.items()))]

    assert of("updates_total") == 2**40 and of("samples_per_second") == 1e-7 and of("loss") != of("loss")
    assert of("evaluation", metric="loss") == float("inf") and of("evaluation", metric="my.metric") == 2.0
    assert (of("worker_restarts_total", worker="0"), of("worker_restarts_total", worker="1")) == (0, 2)
    assert of("worker_cpu_cores", worker="0") == 1.5 and of("worker_phase_ratio", worker="0", phase="working") == 0.5
    assert (of("state", state="running"), of("state", state="failed")) == (1, 0)
    assert (of("fork_server_up"), of("fork_server_memory_bytes")) == (1, 90 << 20)
    stopped = parsed(prometheus.exposition(replace(made, server=ServerSnapshot(76, "stopped"))))
    assert {value for (name, _), value in stopped.items() if name.startswith("hogwild_fork_server")} == {0.0}
    missing = {name for name, _ in found} & {"hogwild_left_seconds", "hogwild_memory_bytes"}
    assert not missing, "what is not known is left out"


def test_a_row_adds_up_how_long_it_was_in_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5 * 10**9
    monkeypatch.setattr(scoreboard.time, "monotonic_ns", lambda: now)
    board = Scoreboard.allocate(2)
    board.renew(1, 1)
    row = Row(board, 1)
    for phase, seconds in ((Phase.WAITING, 1), (Phase.WORKING, 2), (Phase.WORKING, 3), (Phase.WAITING, 4)):
        now += seconds * 10**9
        row.enter(phase)
    now += 10**9
    assert board.phase_s(now)[1].tolist() == [1.0, 3.0, 7.0, 0, 0, 0, 0], "the phase that is on is counted until now"
    assert board.phase_s(now)[0].tolist() == [0.0] * len(Phase)
    board.renew(1, 2)  # another process: it boots, and what was before it stays
    assert board.phase_s(now + 10**9)[1].tolist() == [2.0, 2.0, 7.0, 0, 0, 0, 0]


def test_records_of_64_workers_take_at_most_25_megabytes_a_day(tmp_path: Path) -> None:
    """At the default of one a second, with numbers as long as they are in a job that has run for long."""
    workers = tuple(
        WorkerSnapshot(
            worker=worker,
            state="training",
            phase="working",
            updates=87_654_321 + worker,
            samples_per_s=4321.98765,
            cpu=0.98765,
            pss_bytes=1_234_567_890 + worker,
        )
        for worker in range(64)
    )
    snapshot = JobSnapshot(
        name="job",
        run_dir="/run",
        state="running",
        wall_s=86_400.0,
        left_s=None,
        epoch=123,
        epochs=456,
        position=123.4,
        updates=5_432_109_876,
        planned_updates=10**10,
        samples=347_655_032_064,
        progress=0.5,
        samples_per_s=276_543.98765,
        loss=0.123456789,
        lr=0.00123456789,
        pss_bytes=123_456_789_012,
    )
    with no_start_up() as startup:
        startup.open_run(tmp_path / "run")
        run = startup.rundir
        run.make_folders()
        journal = Journal(run, startup.job, startup)
        for told in (None, workers_record(workers)):
            journal.record(0.0, snapshot, {}, told)
        journal.close()
        short, long = (len(line) for line in run.metrics.path.read_bytes().splitlines(keepends=True))
    assert 2500 < long - short < 3500, "a record of all workers is what takes so much"
    due, told_times = 0.0, 0
    for second in range(86_400):
        if second >= due:
            told_times, due = told_times + 1, second + workers_gap_s(second)
    assert 86_400 / 30 <= told_times < 86_400 / 30 + 100
    assert 86_400 * short + told_times * (long - short) <= 25e6


def test_figures_of_each_worker_are_rarer_the_longer_a_job_runs() -> None:
    assert [workers_gap_s(ran_s) for ran_s in (0.0, 10.0, 600.0, 86_400.0)] == [0.0, 0.5, 30.0, 30.0]


def test_percentiles_of_staleness() -> None:
    counts = np.zeros((3, scoreboard.STALENESS_BINS), np.int64)
    counts[1, [0, 1, 5]] = [50, 49, 1]
    counts[2, [7, 127]] = [1, 99]
    assert _percentiles(counts) == [(0, 0), (0, 1), (127, 127)]


# ---- a job ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    """One with two workers, one without any; both with a schedule and a record every few milliseconds."""
    common = ("train", "log.every_s=0.02", "train.epochs=12", "evaluate.every_epochs=4", "lr_schedule.name=linear")
    common = (*common, "log.tensorboard=false")
    return in_turn(jobs_folder, {"two": (*common, "--procs", "2"), "none": (*common, "--procs", "0")})


def records(job: Ended, kind: str) -> list[dict[str, Any]]:
    lines = (job.run_dir / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


@pytest.mark.processes
@pytest.mark.parametrize(("name", "workers"), [("two", 2), ("none", 1)])
def test_a_training_record_says_what_every_worker_does(ended: dict[str, Ended], name: str, workers: int) -> None:
    job = ended[name]
    assert job.status == 0, job.stderr
    trained = records(job, "train")
    assert trained and trained[-1]["updates"] == job.summary["updates"], "the last part of a job is recorded, too"
    planned = trained[-1]["updates"]
    for record in trained:
        assert record["lr"] == pytest.approx(0.05 * (1 - record["updates"] / planned), rel=1e-5)
    told = [record for record in trained if "workers" in record]
    assert 1 < len(told) <= len(trained)
    assert told[-1]["updates"] == planned, "what follows are records of a job that stands, in its last evaluation"
    for record in told:
        columns = record["workers"]
        assert set(columns) == {"updates", "samples_per_s", "phase", "cpu", "pss_bytes"}
        assert {len(column) for column in columns.values()} == {workers}
        assert set(columns["phase"]) <= {phase.name.lower() for phase in Phase}
        assert all(cpu is None or cpu >= 0 for cpu in columns["cpu"])
    assert sum(told[-1]["workers"]["updates"]) == planned
    shares = [sum(record["workers"]["samples_per_s"]) for record in told]
    assert any(speed > 0 for speed in shares)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["two", "none"])
def test_evaluations_leave_their_pause_and_the_staleness_until_then(ended: dict[str, Ended], name: str) -> None:
    job = ended[name]
    evaluations = records(job, "evaluation")
    assert len(evaluations) == 3 and all(record["seconds"] > 0 for record in evaluations)
    pauses = [pause for pause in job.events("pause") if pause["what"].startswith("evaluation")]  # slow: a checkpoint's
    assert len(pauses) == 2  # the third evaluation is at the end
    assert all(pause["seconds"] > 0 for pause in pauses)
    assert all(p["seconds"] >= e["seconds"] for p, e in zip(pauses, evaluations, strict=False))
    found = records(job, "staleness")
    assert found[-1]["updates"] == sum(found[-1]["counts"]) == job.summary["updates"]
    assert len(found) >= 2 and found[-1]["counts"][-1] > 0


@pytest.mark.whole
@pytest.mark.processes
def test_a_scraper_reads_how_the_job_ended(ended: dict[str, Ended]) -> None:
    job = ended["two"]
    found = parsed((job.run_dir / prometheus.FILE).read_text())
    values = {name: value for (name, labels), value in found.items() if len(labels) == 2}
    assert values["hogwild_samples_total"] == job.summary["samples"] and values["hogwild_progress_ratio"] == 1
    assert {dict(labels)["state"] for (name, labels), v in found.items() if name == "hogwild_state" and v} == {
        "succeeded"
    }


def test_a_last_record_soon_after_another_makes_no_peak_and_no_dip() -> None:
    rate = SampleRate(10.0, 100, least_s=0.5)
    assert rate.at(11.0, 300) == 200.0
    assert rate.at(12.0, 400) == 100.0
    assert rate.at(12.1, 510) == pytest.approx(210 / 1.1)  # since 11.0; 110 in the tenth of a second alone
    assert rate.at(13.1, 510) == 0.0
    assert rate.at(14.1, 300) == 0.0  # a rollback
    assert SampleRate(10.0, 0, least_s=0.5).at(10.1, 10) == pytest.approx(100.0)
    assert SampleRate(10.0, 0, least_s=0.5).at(10.0, 10) == 0.0
