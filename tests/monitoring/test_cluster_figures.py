"""What is told of a cluster while it runs and afterwards: nodes, rounds, bytes, seconds, drift, and who was lost."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli import main
from hogwild.cli.runs import summary_lines
from hogwild.cluster.launch import Launch
from hogwild.cluster.shares import Elsewhere, NodeQueue, Shares
from hogwild.monitoring import prometheus
from hogwild.monitoring.run_status import (
    ClusterSnapshot,
    NodeSnapshot,
    cluster_of,
    progress_line,
    read_status,
    snapshot_of,
)
from hogwild.monitoring.tensorboard import Curves
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.work_queue import Counts, Limits
from hogwild.workers.session.journal import Journal
from hogwild.workers.session.node import Committed, Node, Traffic
from hogwild.workers.session.session import Session
from tests.cli.test_cli import SUMMARY
from tests.cli.test_runs import locked
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


def test_the_display_has_a_line_for_a_cluster_and_none_without_one() -> None:
    before = plain(snapshot(), 120)
    lines = plain(snapshot(cluster=CLUSTER), 120)
    assert lines[5] == "cluster " + "   ".join(LINE)
    assert [*lines[:5], *lines[6:]] == before
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


def test_a_scraper_reads_nodes_and_rounds_in_a_cluster_only() -> None:
    found = {name: value for (name, _), value in parsed(prometheus.exposition(snapshot(cluster=GONE))).items()}
    assert (found["hogwild_nodes"], found["hogwild_nodes_lost_total"], found["hogwild_rounds_total"]) == (1, 1, 57)
    assert (found["hogwild_exchange_seconds"], found["hogwild_drift_ratio"]) == (0.31, 0.002)
    assert (found["hogwild_exchanged_bytes_total"], found["hogwild_cluster_samples_per_second"]) == (225443840, 24000)
    assert "hogwild_nodes" not in prometheus.exposition(snapshot())


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
