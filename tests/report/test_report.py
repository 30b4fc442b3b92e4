"""`hogwild report`: a run directory as a page. The runs are made up (`helpers/run_records.py`); one is real."""

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest

from hogwild.cli import results
from hogwild.config.of_run import resumed
from hogwild.errors import HogwildError, NotFoundError, RunDirError, UsageError
from hogwild.report import tables
from hogwild.report.run_data import read_run
from tests.helpers.run_records import BEGAN, RESOLVED, Story, add_lines, write_run

WICKED = "<script>alert('&')</script>"
ODD_METRIC = "f1 $\\frac$ \N{CJK UNIFIED IDEOGRAPH-7CBE}_<b>"  # no formula: matplotlib would raise
ELEMENTS = """html head meta title style body header h1 h2 p span div dl dt dd nav a figure img figcaption
table thead tbody tr th td ul li wbr"""
PARTS = set(ELEMENTS.split())


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its words, and what its attributes point at."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.parts: set[str] = set()
        self.images: list[bytes] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.words = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.add(tag)
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            kind, _, data = values["src"].partition(",")
            assert kind == "data:image/png;base64"
            self.images.append(base64.b64decode(data))

    def handle_data(self, data: str) -> None:
        self.words += data


def report(*runs: Path, out: Path | None = None) -> dict[str, object]:
    lines = results.report_lines(list(runs), out=out, as_json=True)
    (line,) = lines
    found: dict[str, object] = json.loads(line)
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
    before = dict(matplotlib.rcParams)
    report(story_run)
    assert dict(matplotlib.rcParams) == before
    return Page(story_run / "report" / "index.html")


# ---- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_page_holds_the_pictures_that_lie_beside_it_and_needs_nothing_else(story_run: Path, page: Page) -> None:
    files = {file.stem: file.read_bytes() for file in (story_run / "report").glob("*.png")}
    learning = {"learning-time", "learning-samples", "learning-updates"}
    assert set(files) == learning | {"throughput", "timeline", "staleness", "resources"}
    assert sorted(page.images) == sorted(files.values())
    assert all(link.startswith("#") and link[1:] in page.anchors for link in page.links)
    assert "url(" not in (story_run / "report" / "index.html").read_text()
    assert {file.suffix for file in (story_run / "report").iterdir()} == {".png", ".html"}


def test_nothing_that_a_run_says_becomes_a_part_of_the_page(page: Page) -> None:
    assert page.parts == PARTS
    assert page.words.count(WICKED) >= 4  # heading, summary, event, its kind


def test_a_page_has_outcome_plan_configuration_events_and_what_is_not_there(page: Page) -> None:
    for words in (
        *("succeeded: epochs", "1,500 updates and 48,000 samples by 3 workers", "they share 2 usable cores"),
        *("procs 3 (as given)", "train.procs4override", "optimizer.init_args.lr0.001job file"),
        *("SIGKILL: perhaps out of memory", "32 batches in a row were not finite", "update-000001500"),
        "1 line(s) could not be read",
    ):
        assert words in page.words, words


def test_a_page_is_replaced_and_pictures_of_the_one_before_are_removed(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", Story(records=0, resume=False, rollback=False, deaths=0, checkpoints=0))
    (bare / "report").mkdir()
    for name in ("throughput.png", "chaos.png", "index.html"):
        (bare / "report" / name).write_bytes(b"old")
    assert report(bare)["pictures"] == {"timeline": str(bare / "report" / "timeline.png")}
    assert {file.name for file in (bare / "report").iterdir()} == {"index.html", "timeline.png", "chaos.png"}


def test_a_run_without_any_record_is_a_clear_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text(RESOLVED)
    lines = results.report_lines([tmp_path / "run"], out=tmp_path / "there", as_json=False)
    words = Page(tmp_path / "there" / "index.html").words
    assert lines[0] == str(tmp_path / "there" / "index.html")
    assert "not started: there are no records yet" in words
    assert "Nothing was recorded yet." in words
    assert all(line.strip() in words for line in lines[2:])
    assert not (tmp_path / "run" / "report").exists()


def test_tensorboard_shows_the_pictures_of_the_latest_report(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "run", Story(records=0, resume=False, rollback=False, deaths=0, checkpoints=0))
    (run / "tensorboard").mkdir()
    for _ in range(2):
        report(run)
    events = EventAccumulator(str(run / "tensorboard" / "report")).Reload()
    assert events.Tags()["images"] == ["report/timeline"]
    (image,) = events.Images("report/timeline")
    assert image.encoded_image_string == (run / "report" / "timeline.png").read_bytes()


def test_what_is_no_run_is_refused_in_the_words_of_a_resume(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFoundError) as ours:
            report(folder)
        with pytest.raises(NotFoundError) as theirs:
            resumed(folder, [], {})
        assert (str(ours.value), ours.value.exit_status) == (str(theirs.value), 3)


def test_a_report_that_cannot_be_written_names_the_folder_and_the_way_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=0, workers=0, state="running", resume=False, deaths=0))
    (run / "report").write_text("a file")
    with pytest.raises(RunDirError, match=r"cannot write the report to .*report \(another folder: --out DIR\)"):
        report(run)


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", Story(records=3))
    for name in ("figures", "style", "timeline", "overlays"):
        monkeypatch.delitem(sys.modules, f"hogwild.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'hogwild[report]'")) as found:
        report(run)
    assert found.value.code == "usage/missing-extra"


@pytest.mark.processes
def test_the_report_is_made_without_torch_and_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, hogwild.report.report; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- several runs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_are_compared_by_what_differs(story_run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", Story(records=40, workers=3, per_worker=False, resume=False))
    (other / "resolved.yaml").write_text(RESOLVED.replace("SGD", "Adam"))
    found = report(story_run, other)
    folder = story_run / "report" / "report-run-other"
    assert found["report"] == str(folder / "index.html")
    names = {"learning-time", "learning-samples", "learning-updates", "throughput", "staleness", "memory"}
    assert {file.stem for file in folder.glob("*.png")} == names
    assert Page(folder / "index.html").parts <= PARTS
    outcome, configuration, machine = tables.differences([read_run(story_run), read_run(other)])
    assert configuration.rows == [("optimizer.class_path", "torch.optim.SGD", "torch.optim.Adam")]
    assert machine.rows == []
    assert ("updates", "1,500", "400") in outcome.rows


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=2))
    with pytest.raises(HogwildError, match="named twice"):
        report(run, tmp_path / "." / "run")
