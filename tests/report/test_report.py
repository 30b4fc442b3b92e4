"""`hogwild report`: a run directory as a page, also of a cluster. The runs are made up (`helpers/run_records.py`)."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hogwild.cli import results
from hogwild.config.of_run import resumed
from hogwild.errors import HogwildError, NotFoundError, RunDirError
from hogwild.monitoring.words import event_in_words
from hogwild.report import report as pages
from hogwild.report.charts import groups, page_data
from hogwild.report.report import FILES
from hogwild.report.run_view import RunView, read_run
from tests.helpers.run_records import BEGAN, RESOLVED, Story, add_lines, write_run

WICKED = "<script>alert('&')</script>"
ODD_METRIC = "f1 $\\frac$ \N{CJK UNIFIED IDEOGRAPH-7CBE}_</script><b>"
ELEMENTS = """html head meta title style script body header h1 h2 p span div dl dt dd nav a button noscript i details
summary table thead tbody tr th td ul li wbr"""
PARTS = set(ELEMENTS.split())
MOST_BYTES = 3_000_000


class Page(HTMLParser):
    """A page as a browser sees it: its elements, its words, and what its attributes point at."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.parts: set[str] = set()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.scripts: list[str] = []
        self.policy = self.words = self._inside = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.add(tag)
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        self.links += [values[name] for name in ("href", "src", "action") if name in values]
        if "http-equiv" in values:
            self.policy = values["content"]
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words += data


def report(*runs: Path, out: Path | None = None) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(results.report_answer(list(runs), out)[0]))
    return found


@pytest.fixture(scope="module")
def story_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that can be in one, and names that mean mischief."""
    run = write_run(tmp_path_factory.mktemp("report") / "run", Story(records=150, workers=3, name=WICKED))
    where = {"time": BEGAN + 20, "updates": 100, "samples": 3200}
    add_lines(run / "metrics.jsonl", {**where, "kind": "evaluation", ODD_METRIC: 0.5, "loss": 1.0})
    add_lines(run / "events.jsonl", {"time": BEGAN + 1e5, "event": WICKED, "why": WICKED})
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"time": 1, "kind": "tr')
    return run


@pytest.fixture(scope="module")
def page(story_run: Path) -> Page:
    report(story_run)
    return Page(story_run / "report" / "index.html")


# ---- the page -------------------------------------------------------------------------------------------------------


def test_a_page_needs_nothing_else(story_run: Path, page: Page) -> None:
    assert all(link.startswith("#") and link[1:] in page.anchors for link in page.links)
    text = (story_run / "report" / "index.html").read_text()
    assert "url(" not in text and "@import" not in text
    assert page.policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert page.policy.count("sha256-") == len(page.scripts) - 1  # the data are no script
    assert [file.name for file in (story_run / "report").iterdir()] == ["index.html"]


def test_nothing_that_a_run_says_becomes_a_part_of_the_page(page: Page) -> None:
    assert page.parts <= PARTS
    assert page.words.count(WICKED) >= 4  # heading, result, event, its reason
    assert len(page.scripts) == 4
    data = json.loads(page.scripts[0])
    assert ODD_METRIC in data["runs"][0]["tables"]["evaluations"]["columns"]


def test_a_page_has_outcome_plan_configuration_events_and_what_is_not_there(page: Page) -> None:
    for words in (
        *("succeeded: epochs", "samples48,0001,500 updates", "they share 2 usable cores", "best loss", "restarts6"),
        *("procs 3 (as given)", "train.procs4override", "optimizer.init_args.lr0.001job file"),
        *("worker 0 died", "SIGKILL: perhaps out of memory", "32 batches in a row were not finite"),
        *("samples per second", "update-000001500", "1 line(s) could not be read"),
    ):
        assert words in page.words, words
    assert "samples_per_s" not in page.words


@pytest.mark.slow
def test_a_page_of_100_000_records_is_small_and_says_that_it_is_thinned(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=100_000, deaths=300))
    page = Page(Path(str(report(run)["report"])))
    assert (run / "report" / "index.html").stat().st_size < MOST_BYTES
    assert "more records than a page needs" in page.words
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    (found,) = json.loads(page.scripts[0])["runs"]
    kept = found["tables"]["train"]["columns"]["loss"]
    assert (min(kept), max(kept)) == pytest.approx((min(losses), max(losses)), rel=1e-5)
    assert found["tables"]["train"]["records"] == 100_000 > len(kept)


def test_the_chart_library_comes_with_its_licence_and_its_origin() -> None:
    vendor = FILES / "vendor" / "uplot"
    assert "MIT License" in (vendor / "LICENSE").read_text()
    assert "uPlot 1.6.32" in (vendor / "ORIGIN.md").read_text()
    assert "(v1.6.32)" in (vendor / "uPlot.iife.min.js").read_text()[:80]


def test_a_page_is_replaced_and_other_files_beside_it_stay(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", Story(records=0, resume=False, rollback=False, deaths=0, checkpoints=0))
    (bare / "report").mkdir()
    for name in ("chaos.json", "index.html"):
        (bare / "report" / name).write_bytes(b"old")
    assert report(bare)["report"] == str(bare / "report" / "index.html")
    assert {file.name: file.read_bytes() == b"old" for file in (bare / "report").iterdir()} == {
        "index.html": False,
        "chaos.json": True,
    }


def test_a_run_without_any_record_is_a_clear_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text(RESOLVED)
    lines = results.report_answer([tmp_path / "run"], tmp_path / "there")[1]
    words = Page(tmp_path / "there" / "index.html").words
    assert lines[0] == str(tmp_path / "there" / "index.html")
    assert "lost: its process was killed, or the machine stopped" in words
    assert "Nothing was recorded yet." in words
    assert all(line.strip() in words for line in lines[1:])
    assert not (tmp_path / "run" / "report").exists()


def test_what_is_no_run_is_refused_in_the_words_of_a_resume(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFoundError) as ours:
            report(folder)
        with pytest.raises(NotFoundError) as theirs:
            resumed(folder, [])
        assert (str(ours.value), ours.value.exit_status) == (str(theirs.value), 3)


def test_a_report_that_cannot_be_written_names_the_folder_and_the_way_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=0, workers=0, state="running", resume=False, deaths=0))
    (run / "report").write_text("a file")
    with pytest.raises(RunDirError, match=r"cannot write the report to .*report \(another folder: --out DIR\)"):
        report(run)


@pytest.mark.processes
def test_the_report_is_made_without_torch() -> None:
    code = "import sys, hogwild.report.report; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ---- several runs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_are_compared_by_what_differs(story_run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", Story(records=40, workers=3, per_worker=False, resume=False))
    (other / "resolved.yaml").write_text(RESOLVED.replace("SGD", "Adam"))
    found = report(story_run, other)
    folder = story_run / "report" / "report-run-other"
    assert found["report"] == str(folder / "index.html")
    page = Page(folder / "index.html")
    assert page.parts <= PARTS
    data = json.loads(page.scripts[0])
    assert [run["name"] for run in data["runs"]] == ["run", "other"]
    outcome, configuration, machine = pages.differences([read_run(story_run), read_run(other)])
    assert configuration.rows == [("optimizer.class_path", "torch.optim.SGD", "torch.optim.Adam")]
    assert machine.rows == []
    assert ("samples", "48,000 (1,500 updates)", "12,800 (400 updates)") in outcome.rows


def test_runs_of_the_same_name_are_numbered(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / place / "run", Story(records=2))) for place in "ab"]
    assert pages.labels(runs) == ["1 run", "2 run"]


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=2))
    with pytest.raises(HogwildError, match="named twice"):
        report(run, tmp_path / "." / "run")


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
def cluster_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_a_row_per_node_with_the_rounds_above_it(cluster_run: Path) -> None:
    table = pages.nodes(read_run(cluster_run))
    assert table.rows == [
        ("node 0", "one", "running", "2,000", "1,400", "0.2 %"),
        ("node 1", "", "lost", "", "", ""),
    ]
    assert table.note == (
        "1 node, node 1 lost, round 57, 5,000 samples/s in all, 0.31 s and 1.0 MiB a round, drift 0.2 %."
    )
    assert table.marks == ["", "strong"]


def test_the_first_figures_are_those_of_all_nodes(cluster_run: Path) -> None:
    found = pages.headline(read_run(cluster_run))
    assert "by 2 nodes" in found.sentence
    assert ("samples per second", "5,000", "of all nodes") in found.tiles


def test_seconds_and_drift_of_the_rounds_are_columns_and_no_losses(cluster_run: Path) -> None:
    data = page_data([read_run(cluster_run)], ["run"])
    assert "rounds" in groups(data)
    columns = data["runs"][0]["tables"]["train"].columns
    assert [name for name in columns if name.startswith("cluster.")] == ["cluster.seconds", "cluster.drift"]
    assert columns["cluster.seconds"][0] == 0.3


def test_the_page_has_both(cluster_run: Path) -> None:
    page = Page(Path(str(report(cluster_run)["report"])))
    for words in ("Rounds between nodes", "Nodes", "node 1 lost", "communicator died", "samples per second5,000"):
        assert words in page.words, words
    assert "of_nodes" not in page.words and "of nodes" not in page.words
    data = json.loads(page.scripts[0])
    (trouble,) = (row["marks"] for row in data["timeline"]["rows"] if row["name"] == "trouble")
    told = {mark["text"].partition(";")[0] for mark in trouble}
    assert told >= {"node 1 lost", "communicator died"} and "worker" not in " ".join(told)


def test_what_happened_to_nodes_is_said_in_words() -> None:
    for kind, (values, words) in EVENTS.items():
        assert event_in_words({"time": 1.0, "event": kind, **values}) == words
    assert event_in_words({"time": 1.0, "event": "node-lost", "nodes": [1, 2]})[0] == "nodes 1-2 lost"


def test_a_run_on_one_machine_has_no_nodes(tmp_path: Path) -> None:
    alone: RunView = read_run(write_run(tmp_path / "run", Story(records=20)))
    assert not pages.nodes(alone).rows
    assert "rounds" not in groups(page_data([alone], ["run"]))
