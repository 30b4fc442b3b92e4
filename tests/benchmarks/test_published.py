"""Figures in the pages are those of the committed results, and results are those of a commit."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import published, results
from benchmarks.row import Row


@pytest.mark.parametrize("page", sorted({page for page, _ in published.blocks()}))
def test_every_figure_of_a_page_is_that_of_a_committed_result(page: str) -> None:
    assert (published.ROOT / page).read_text() == published.page_with_figures(page), "python -m benchmarks.published"


def test_every_block_stands_in_its_page() -> None:
    standing = {
        (page, name)
        for page in {page for page, _ in published.blocks()}
        for _, name, _ in published.BLOCK.findall((published.ROOT / page).read_text())
    }
    assert standing == set(published.blocks())


@pytest.mark.parametrize(
    ("runs", "smaller_is_better", "words"),
    [([0.929], False, " (missed: 0.93 asked)"), ([0.93], False, ""), ([0.929], True, "")],
)
def test_a_value_that_misses_its_target_says_so(runs: list[float], smaller_is_better: bool, words: str) -> None:
    assert published.missed(Row("figure", "x", 0.93, runs, smaller_is_better=smaller_is_better)) == words


def test_a_void_row_is_no_success() -> None:
    assert published.missed(Row("figure", "x", 0.93, [1.0]).void("slow")) == " (void)"


@pytest.mark.parametrize("text", ["{{dense: no such row}}", "{{dense: LeNet, `--procs 1` | gain}}"])
def test_a_figure_that_was_not_measured_is_an_error(text: str) -> None:
    with pytest.raises(published.UnknownFigure):
        published.filled(text)


def test_a_row_is_about_all_of_its_runs() -> None:
    assert Row("returns", "", 475.0, [499.0, 500.0, 443.0], center="worst").met is False
    assert Row("seconds", "", 2.0, [1.0, 3.0], smaller_is_better=True, center="worst").value == 3.0


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit: code.py and results/suite.json."""
    (tmp_path / "results").mkdir()
    for name in ("code.py", "results/suite.json"):
        (tmp_path / name).write_text("before\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    return tmp_path


@pytest.mark.processes
def test_a_suite_does_not_measure_code_that_is_not_committed(checkout: Path) -> None:
    (checkout / "code.py").write_text("after\n")
    with pytest.raises(results.NotCommitted, match=r"code\.py"):
        results.begin()
    assert results.commit().endswith("-dirty")


@pytest.mark.processes
def test_results_that_a_suite_has_written_so_far_do_not_count_as_changes(checkout: Path) -> None:
    (checkout / "results" / "suite.json").write_text("after\n")
    assert results.begin()["torch"] and not results.commit().endswith("-dirty")
