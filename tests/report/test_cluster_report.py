"""The report of a cluster's run: a row per node, the rounds as curves, and what happened to nodes in plain words."""

import json
from pathlib import Path
from typing import Any

import pytest

from hogwild.monitoring.words import event_in_words
from hogwild.report import report as pages
from hogwild.report.charts import groups, page_data
from hogwild.report.run_view import RunView, read_run
from tests.helpers.run_records import BEGAN, Story, write_run
from tests.report.test_report import Page, report

NODES = [
    {"node": 0, "state": "running", "updates": 2000, "host": "one", "samples_per_s": 1400.4, "drift": 0.002},
    {"node": 1, "state": "lost", "updates": None, "host": None, "samples_per_s": None, "drift": None},
]
CLUSTER = {"node": 0, "nodes": 1, "round": 57, "rounds": 57, "nbytes": 57 * 2**20, "seconds": 0.31, "lost": 1}
EVENTS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "cluster-joined": ({"nodes": [0, 1, 2], "generation": 1, "disk": True}, ("joined the other nodes", "nodes 0-2")),
    "cluster-formed": ({"nodes": [0, 1], "generation": 2}, ("the nodes formed their group again", "nodes 0-1")),
    "node-lost": (
        {"nodes": [1], "generation": 3, "left": [0, 2, 3]},
        ("node 1 lost", "nodes that are left 0,2-3"),
    ),
    "communicator-exit": (
        {"communicator": 0, "kind": "died", "how": "killed by SIGKILL", "pid": 9},
        ("communicator died", "killed by SIGKILL"),
    ),
    "round-refused": (
        {"round": 5},
        ("parameters were not finite: batches since the last round are skipped", "round 5"),
    ),
    "cluster-out": ({"why": "no answer for 10 s"}, ("the other nodes went on without this one", "no answer for 10 s")),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run whose every record has a round; the second node was lost."""
    run = write_run(tmp_path_factory.mktemp("cluster") / "run", Story(records=60, workers=2, resume=False))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        if line["kind"] == "train":
            line["cluster"] = {"round": number, "nodes": 2, "nbytes": 0, "seconds": 0.3 + number, "drift": 0.01}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((run / "summary.json").read_text())
    told = {**CLUSTER, "drift": 0.002, "samples_per_s": 5000.0, "of_nodes": NODES}
    (run / "summary.json").write_text(json.dumps({**summary, "cluster": told}))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    events += [{"time": BEGAN + 30, "event": kind, **values} for kind, (values, _) in EVENTS.items()]
    events.sort(key=lambda event: event["time"])
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def test_a_row_per_node_with_the_rounds_above_it(run: Path) -> None:
    table = pages.nodes(read_run(run))
    assert table.rows == [
        ("node 0", "one", "running", "2,000", "1,400", "0.2 %"),
        ("node 1", "", "lost", "", "", ""),
    ]
    assert table.note == (
        "1 node, node 1 lost, round 57, 5,000 samples/s in all, 0.31 s and 1.0 MiB a round, drift 0.2 %."
    )
    assert table.marks == ["", "strong"]


def test_the_first_figures_are_those_of_all_nodes(run: Path) -> None:
    found = pages.headline(read_run(run))
    assert "by 2 nodes" in found.sentence
    assert ("samples per second", "5,000", "of all nodes") in found.tiles


def test_seconds_and_drift_of_the_rounds_are_columns_and_no_losses(run: Path) -> None:
    data = page_data([read_run(run)], ["run"])
    assert "rounds" in groups(data)
    columns = data["runs"][0]["tables"]["train"].columns
    assert [name for name in columns if name.startswith("cluster.")] == ["cluster.seconds", "cluster.drift"]
    assert columns["cluster.seconds"][0] == 0.3


def test_the_page_has_both(run: Path) -> None:
    page = Page(Path(str(report(run)["report"])))
    for words in ("Rounds between nodes", "Nodes", "node 1 lost", "communicator died", "samples per second5,000"):
        assert words in page.words, words
    assert "of_nodes" not in page.words and "of nodes" not in page.words
    data = json.loads(page.scripts[0])
    (trouble,) = (row["marks"] for row in data["timeline"]["rows"] if row["name"] == "trouble")
    told = {mark["text"].partition(";")[0] for mark in trouble}
    assert told >= {"node 1 lost", "communicator died"} and "worker" not in " ".join(told)


@pytest.mark.parametrize("kind", EVENTS)
def test_what_happened_to_nodes_is_said_in_words(kind: str) -> None:
    values, words = EVENTS[kind]
    assert event_in_words({"time": 1.0, "event": kind, **values}) == words


def test_several_lost_nodes_are_named_together() -> None:
    assert event_in_words({"time": 1.0, "event": "node-lost", "nodes": [1, 2]})[0] == "nodes 1-2 lost"


def test_a_run_on_one_machine_has_no_nodes(tmp_path: Path) -> None:
    alone: RunView = read_run(write_run(tmp_path / "run", Story(records=20)))
    assert not pages.nodes(alone).rows
    assert "rounds" not in groups(page_data([alone], ["run"]))
