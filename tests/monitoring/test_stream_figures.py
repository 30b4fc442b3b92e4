"""What is told of a stream while it runs and afterwards: loaders, slots, who waits for whom, deaths, and advice."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hogwild
from hogwild.cli import results
from hogwild.monitoring import prometheus, stream_figures
from hogwild.monitoring.run_status import StreamSnapshot, WorkerSnapshot
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.shared_memory.scoreboard import Phase
from tests.helpers.jobs import HOME, read_events
from tests.monitoring.test_live_display import plain, snapshot
from tests.monitoring.test_progress import parsed

STREAM = StreamSnapshot(loaders=2, wanted=3, filled=5, slots=12, deaths=4, waits="workers wait for loaders")
ROWS = [{"loader": k, "state": "training"} for k in range(2)]
WAITING = [WorkerSnapshot(0, "training", phases={"waiting": share, "working": 1 - share}) for share in (0.5, 0.0)]
BUSY = [WorkerSnapshot(0, "training", phases={"waiting": 0.1, "working": 0.9})]


def test_the_display_has_a_line_for_a_stream_and_none_without_one() -> None:
    before = plain(snapshot(), 79)
    lines = plain(snapshot(stream=STREAM), 79)
    assert lines[5] == "loaders 2 of 3   slots filled 5 of 12   workers wait for loaders"
    assert [*lines[:5], *lines[6:]] == before
    assert lines[5] + "   loader deaths 4" in plain(snapshot(stream=STREAM), 120)
    narrow = plain(snapshot(stream=replace(STREAM, wanted=1, loaders=1, deaths=0, waits="")), 40)
    assert "loaders 1   slots filled 5 of 12" in narrow


def test_a_scraper_reads_loaders_and_slots_where_something_is_streamed() -> None:
    found = {name: value for (name, _), value in parsed(prometheus.exposition(snapshot(stream=STREAM))).items()}
    assert (found["hogwild_loaders"], found["hogwild_loader_deaths_total"]) == (2, 4)
    assert (found["hogwild_slots"], found["hogwild_slots_filled"]) == (12, 5)
    assert "hogwild_loaders" not in prometheus.exposition(snapshot())


def schedule_of(filled: int, slots: int = 4) -> StreamSchedule:
    """Of a ring into which so many batches were read, two loaders taking turns."""
    schedule = StreamSchedule(BatchPlan(64, 2), slots, 2, 1, 1)
    schedule.free_of(0)
    for number in range(filled):
        request = schedule.request(number % 2)
        assert request is not None and schedule.filled(number % 2, request.slot, 2)
    return schedule


@pytest.mark.parametrize(
    ("filled", "workers", "words"),
    [
        (4, BUSY, "loaders wait for workers"),
        (3, BUSY, ""),
        (0, WAITING, "workers wait for loaders"),
        (4, [], "loaders wait for workers"),
        (0, [], ""),
    ],
)
def test_who_waits_for_whom_is_told_by_the_time_of_the_workers_and_the_free_slots(
    filled: int, workers: list[WorkerSnapshot], words: str
) -> None:
    found = stream_figures.stream_snapshot(schedule_of(filled), ROWS, workers, deaths=1)
    assert found == StreamSnapshot(loaders=2, wanted=2, filled=filled, slots=4, deaths=1, waits=words)


@pytest.mark.parametrize(
    ("idle", "waited_s", "words"),
    [
        (0.4, 60.0, None),
        (0.9, 1.0, None),
        (
            0.83,
            60.0,
            "workers waited 83 % of the time for streamed batches: use more data.loaders (2 loaders now, 3 usable",
        ),
    ],
)
def test_advice_names_the_share_of_the_time_that_workers_waited(idle: float, waited_s: float, words: str) -> None:
    found = stream_figures.about_waiting(idle, waited_s, 2, cores=3.0, workers=2)
    assert found is None if words is None else found is not None and found.startswith(words)
    assert found is None or ("less work per record" in found and "data.feed: resident" in found)


def test_what_workers_waited_before_the_first_update_is_not_the_streams() -> None:
    spent = np.zeros((2, len(Phase)))
    spent[:, Phase.WAITING], spent[:, Phase.WORKING] = (31.0, 33.0), (6.0, 10.0)
    assert stream_figures.waiting_of(spent, active_s=10.0) == (0.2, 2.0)
    assert stream_figures.waiting_of(spent, active_s=100.0) == (0.32, 32.0)
    assert stream_figures.waiting_of(spent, active_s=0.0) == (0.0, 0.0)


# ---- of a job --------------------------------------------------------------------------------------------------------


class Deadly(torch.utils.data.Dataset):
    """Ends, once, the loader that reads record 40; and so workers wait."""

    def __init__(self, diary: Path) -> None:
        self.diary = diary

    def __len__(self) -> int:
        return 160

    def __getitem__(self, number: int) -> Any:
        import os
        import signal

        if number == 40 and not (self.diary / "done").exists():
            (self.diary / "done").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(2), torch.zeros(1)


@pytest.mark.processes
def test_a_job_tells_deaths_and_the_ring_in_its_records_and_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_figures, "LEAST_S", 0.0)
    monkeypatch.setattr(stream_figures, "MOST", 0.0)
    monkeypatch.chdir(HOME)
    model = nn.Linear(2, 1)
    result = hogwild.train(
        model,
        Deadly(tmp_path),
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        procs=1,
        batch_size=4,
        feed="stream",
        shuffle="none",
        run_dir=tmp_path / "run",
    )
    assert (result.state, result.samples, result.loader_deaths) == ("succeeded", 160, 1)
    assert result.ring is not None and result.ring["slots"] >= 4 and result.ring["bytes"] > 0
    assert result.advice is not None and "of the time for streamed batches" in result.advice
    events = read_events(tmp_path / "run")
    ready = [event for event in events if event["event"] == "loader-ready"]
    assert not any(event["update"] for event in ready), "a loader makes no updates"
    assert [event["incarnation"] for event in ready] == [1, 2]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["loader_deaths"] == 1
    assert "hogwild_loader_deaths_total" in (tmp_path / "run" / "metrics.prom").read_text()
    results.report_answer([tmp_path / "run"], None)
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "deaths of loaders" in page and "loader 0 died" in page


class Endless(torch.utils.data.IterableDataset):
    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop

    def __iter__(self) -> Iterator[Any]:
        for _ in count() if self.stop is None else range(self.stop):
            yield torch.zeros(2), torch.zeros(1)


@pytest.mark.parametrize(("stop", "max_time_s", "planned", "progress"), [(None, 0.2, None, None), (40, None, 10, 1.0)])
def test_how_far_a_stream_without_a_length_is_nobody_says_until_its_end(
    stop: int | None, max_time_s: float | None, planned: int | None, progress: float | None, tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"procs": 0, "batch_size": 4, "run_dir": tmp_path / "run", "max_time_s": max_time_s}
    hogwild.train(model, Endless(stop), nn.MSELoss(), optimizer, **settings)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["updates"] > 0 and (status["planned_updates"], status["progress"]) == (planned, progress)


def test_where_nobody_knows_how_far_it_is_there_is_no_bar_and_no_figure() -> None:
    made = snapshot(progress=None, planned_updates=None)
    assert [line for line in plain(made, 79) if line.startswith("job")] == [f"job     update {made.updates:,}"]
    assert "hogwild_progress_ratio" not in prometheus.exposition(made)
    assert "hogwild_updates_planned" not in prometheus.exposition(made)


def test_a_job_that_streams_nothing_has_no_figures_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    model = nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.from_numpy(np.ones((8, 2), np.float32)), torch.zeros(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = hogwild.train(model, data, nn.MSELoss(), optimizer, procs=0, run_dir=tmp_path / "run")
    assert result.loader_deaths is None and result.ring is None
