"""The figures of a cluster and of a stream, while they run and afterwards: nodes, rounds, bytes, seconds, drift, and
the nodes that were lost; loaders, slots, waits, deaths, and advice."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hogwild
from hogwild.cli import main, results
from hogwild.cli.runs import summary_lines
from hogwild.cluster.launch import Launch
from hogwild.cluster.shares import Elsewhere, NodeQueue, Shares
from hogwild.monitoring import prometheus, stream_figures
from hogwild.monitoring.run_status import (
    ClusterSnapshot,
    NodeSnapshot,
    StreamSnapshot,
    WorkerSnapshot,
    cluster_of,
    progress_line,
    read_status,
    snapshot_of,
)
from hogwild.monitoring.tensorboard import Curves
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.scheduling.work_queue import Counts, Limits
from hogwild.shared_memory.scoreboard import Phase
from hogwild.workers.session.journal import Journal
from hogwild.workers.session.node import Committed, Node, Traffic
from hogwild.workers.session.session import Session
from tests.cli.test_cli import SUMMARY
from tests.cli.test_runs import locked
from tests.helpers.jobs import HOME, read_events
from tests.helpers.run_status import no_start_up
from tests.monitoring.test_live_display import plain, snapshot
from tests.monitoring.test_progress import parsed
from tests.monitoring.test_run_status import SNAPSHOT, record, write
from tests.monitoring.test_tensorboard import points, read, trained

NODES = (
    NodeSnapshot(0, "running", 700, "one", 14_000.0, 0.002),
    NodeSnapshot(1, "running", 500, "two", 10_000.0, 0.003),
)
CLUSTER = ClusterSnapshot(
    nodes=2,
    generation=1,
    round=57,
    rounds=50,
    nbytes=225_443_840,
    seconds=0.31,
    cut_s=0.004,
    drift=0.002,
    samples_per_s=24_000.0,
    of_nodes=NODES,
)
LINE = ("2 nodes", "round 57", "24,000 samples/s in all", "0.31 s and 4.3 MiB a round", "drift 0.2 %")
GONE = replace(CLUSTER, nodes=1, lost=1, of_nodes=(NODES[0], NodeSnapshot(1, "lost")))


# ---- from a node -----------------------------------------------------------------------------------------------------


def node(members: tuple[int, ...] = (0, 1)) -> Node:
    """The first of two nodes, after a round. Nothing here needs its anchor."""
    plan, limits = BatchPlan(64, 4), Limits(procs=1)
    shares = Shares(plan, limits)
    launch = Launch(rank=0, world=2, run_id="job", address="localhost", port=1)
    found = Node(launch, None, shares, NodeQueue(plan, limits), Committed(shares), members)  # type: ignore[arg-type]
    found.generation, found.round = 1, 57
    found.traffic = Traffic(rounds=50, nbytes=225_443_840, seconds=0.31, cut_s=0.004, drift=0.002)
    found.notes = {
        one.node: {
            **{name: value for name, value in asdict(one).items() if name in ("host", "samples_per_s", "drift")},
            "counts": {"updates": one.updates},
        }
        for one in NODES
    }
    return found


def test_a_snapshot_has_all_that_a_node_records_and_the_speed_of_all_nodes() -> None:
    found = node().record()
    assert cluster_of(found) == CLUSTER
    assert found.keys() == asdict(CLUSTER).keys() - {"samples_per_s"}


def test_the_speed_of_a_lost_node_is_not_counted() -> None:
    found = cluster_of(node(members=(0,)).record())
    assert found is not None and found.samples_per_s == 14_000.0 and found.loss == "node 1 lost"


def test_a_round_of_others_does_not_make_this_node_look_fast() -> None:
    found = node()
    found.queue.own.samples = 80
    session = Session.__new__(Session)  # only what the question needs
    session.node, session.queue = found, found.queue
    assert (found.queue.samples, session.samples_here) == (80, 80)
    found.queue.note_elsewhere(Elsewhere(counts=Counts(samples=4000)))
    assert (found.queue.samples, session.samples_here) == (4080, 80)


# ---- the line --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, LINE),
        ({"rounds": 0, "round": 0, "samples_per_s": 0.0}, ("2 nodes", "round 0")),
        ({"skipped": 2, "samples_per_s": 0.0}, ("2 nodes", "round 57", "2 not finite", *LINE[3:])),
        ({"seconds": 12.3, "drift": 0.000042}, (*LINE[:3], "12 s and 4.3 MiB a round", "drift 0.0042 %")),
    ],
)
def test_a_cluster_is_one_line(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    assert replace(CLUSTER, **changes).words == words


def test_lost_nodes_are_named_first() -> None:
    assert GONE.words[:3] == ("1 node", "node 1 lost", "round 57")
    both = replace(CLUSTER, of_nodes=(*NODES, NodeSnapshot(2, "lost"), NodeSnapshot(3, "lost")))
    assert both.words[:2] == ("2 nodes", "nodes 2 and 3 lost")


def test_the_display_has_a_line_for_a_cluster_or_a_stream_and_none_without_one() -> None:
    streamed = "loaders 2 of 3   slots filled 5 of 12   workers wait for loaders   loader deaths 4"
    for more, line in (({"cluster": CLUSTER}, "cluster " + "   ".join(LINE)), ({"stream": STREAM}, streamed)):
        lines = plain(snapshot(**more), 120)
        assert lines[5] == line and [*lines[:5], *lines[6:]] == plain(snapshot(), 120)
    assert plain(snapshot(stream=STREAM), 79)[5] == streamed.partition("   loader deaths")[0]
    narrow = plain(snapshot(stream=replace(STREAM, wanted=1, loaders=1, deaths=0, waits="")), 40)
    assert "loaders 1   slots filled 5 of 12" in narrow
    assert plain(snapshot(cluster=CLUSTER), 79)[5] == "cluster " + "   ".join(LINE[:3])  # whole figures only
    assert "cluster 1 node   node 1 lost   round 57" in plain(snapshot(cluster=GONE), 50)


def test_without_a_terminal_the_line_of_progress_has_the_round_and_who_was_lost() -> None:
    assert "samples/s  left 0:04:10  round 57  node 1 lost" in progress_line(snapshot(cluster=GONE))
    assert "round" not in progress_line(snapshot())


# ---- records ---------------------------------------------------------------------------------------------------------


def test_status_json_has_the_cluster_and_a_reader_finds_it_again(tmp_path: Path) -> None:
    made = record(snapshot=replace(SNAPSHOT, cluster=CLUSTER))
    assert made["cluster"]["round"] == 57 and made["cluster"]["of_nodes"][1]["host"] == "two"
    assert snapshot_of(made).cluster == CLUSTER
    lost = read_status(write(tmp_path / "run", made)).snapshot
    assert lost.cluster == replace(CLUSTER, samples_per_s=0.0), "nothing moves in a lost run"
    assert snapshot_of({name: value for name, value in made.items() if name != "cluster"}).cluster is None


def test_hogwild_status_shows_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", record(snapshot=replace(SNAPSHOT, cluster=GONE)))
    with locked(run):
        assert main.run(["status", str(run)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  cluster "))
    assert line == "  cluster     1 node, node 1 lost, " + ", ".join(LINE[1:])


def test_a_training_record_has_the_numbers_of_the_rounds_and_an_end_moves_no_more(tmp_path: Path) -> None:
    with no_start_up() as startup:
        startup.open_run(tmp_path / "run")
        run = startup.rundir
        run.make_folders()
        journal = Journal(run, startup.job, startup)
        journal.record(0.0, replace(SNAPSHOT, cluster=CLUSTER), {})
        journal.record(1.0, SNAPSHOT, {})
        journal.event("node-lost", nodes=[1, 2], generation=2, left=[0])
        journal.event("communicator-exit", communicator=0, kind="died", how="killed by SIGKILL", pid=7)
        assert [line.partition("  ")[2] for line in journal.news] == [
            "nodes 1-2 lost: nodes that are left 0",
            "communicator died: killed by SIGKILL",
        ]
        journal.record(2.0, replace(SNAPSHOT, cluster=CLUSTER), {})
        journal.last_status("succeeded", 1.0, {})
        journal.close()
        first, second, _ = map(json.loads, run.metrics.path.read_text().splitlines())
        last = json.loads((run.path / "status.json").read_text())["cluster"]
    numbers = {"round": 57, "nodes": 2, "nbytes": 225_443_840, "seconds": 0.31, "drift": 0.002}
    assert first["cluster"] == {**numbers, "samples_per_s": 24_000.0} and "cluster" not in second
    assert (last["round"], last["samples_per_s"]) == (57, 0.0)


def test_a_scraper_reads_nodes_and_slots_only_where_there_are_some() -> None:
    plain_names = {name for name, _ in parsed(prometheus.exposition(snapshot()))}
    for more, values in (
        (
            {"cluster": GONE},
            {
                "nodes": 1,
                "nodes_lost_total": 1,
                "rounds_total": 57,
                "exchange_seconds": 0.31,
                "drift_ratio": 0.002,
                "exchanged_bytes_total": 225_443_840,
                "cluster_samples_per_second": 24_000,
            },
        ),
        ({"stream": STREAM}, {"loaders": 2, "loader_deaths_total": 4, "slots": 12, "slots_filled": 5}),
    ):
        found = {name: value for (name, _), value in parsed(prometheus.exposition(snapshot(**more))).items()}
        assert {name.removeprefix("hogwild_"): found[name] for name in found.keys() - plain_names} == values


def test_tensorboard_has_curves_of_the_rounds(tmp_path: Path) -> None:
    curves = Curves(tmp_path / "tb", {}, at_once=True)
    curves.write({**trained(50), "cluster": {"round": 3, "nodes": 2, "seconds": 0.25, "drift": 0.5}})
    curves.write(trained(60))
    curves.close()
    found = read(tmp_path / "tb")
    assert points(found, "cluster/seconds") == [(50, 0.25)] and points(found, "cluster/drift") == [(50, 0.5)]


def test_the_summary_says_it_in_one_line_and_its_speed_is_that_of_all_nodes() -> None:
    told = {**SUMMARY, "cluster": {**node(members=(0,)).record(), "lost": 1, "samples_per_s": 24_000.0}}
    lines = list(summary_lines(told))
    assert "  43,110 samples in 2,700 updates by 2 nodes, 24,000 samples/s" in lines
    assert "  cluster: 1 node, node 1 lost, round 57, 0.31 s and 4.3 MiB a round, drift 0.2 %" in lines
    assert lines[-1] == "  resume with: the same command on every node"
    told["cluster"]["of_nodes"] = [{"node": number, "host": "one"} for number in (0, 1)]
    told["run_dir"] = "runs/x/node-1"
    assert [*summary_lines(told)][-1] == "  resume with: hogwild train --resume runs/x --nodes 2"
    for alone in (SUMMARY, {**SUMMARY, "cluster": None}):
        assert not [line for line in summary_lines(alone) if "cluster" in line]


STREAM = StreamSnapshot(loaders=2, wanted=3, filled=5, slots=12, deaths=4, waits="workers wait for loaders")
ROWS = [{"loader": k, "state": "training"} for k in range(2)]
WAITING = [WorkerSnapshot(0, "training", phases={"waiting": share, "working": 1 - share}) for share in (0.5, 0.0)]
BUSY = [WorkerSnapshot(0, "training", phases={"waiting": 0.1, "working": 0.9})]


def schedule_of(filled: int, slots: int = 4) -> StreamSchedule:
    """Return the schedule of a ring into which so many batches were read, two loaders taking turns."""
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
