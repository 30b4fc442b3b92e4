"""The code of the suites `named` and `search`: that their tables are what was asked for, and what their numbers are
made of. No figure is looked at: those are measured on a quiet machine."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("optuna", reason="needs optuna: pip install 'hogwild[search]'")

from benchmarks import named, search, sparse_data
from benchmarks.synthetic_ratings import Shape
from hogwild.config.load import load_job

# The tables that were asked for, written down once more: how the figure begins, its bound, whether that is from above.
NAMED = [
    ("64 known ids of a million, dim 32, forward and backward: time over nn.Embedding", 1.25, True),
    ("1,024 known ids", 1.25, True),
    ("16,384 known ids", 1.25, True),
    ("stream of clicks, 20 % new ids in 100,000 rows: 2 workers over 1", 1.8, False),
    ("stream of clicks, factorisation machine, 2 workers: rows/s over Vowpal Wabbit's, 22 bits", 3.0, False),
    ("the same: progressive log loss, ours less Vowpal Wabbit's", 0.0, True),
    ("the same, 1 worker: log loss that ids save over hashing", 0.0, False),
    ("growth from 1 to 2 million rows, dim 32, Adagrad", 200.0, True),
    ("100 million ids, 10 million rows with expiry: most memory over the plan", 1.05, True),
    ("100 million ids, 10 million rows with expiry: memory at the end", 1.01, True),
    ("seeded kills while rows are claimed, added and given back: kills", 100_000, False),
    *((f"seeded kills while rows are claimed, added and given back: rows {what}", 0, True)
      for what in ("lost", "doubled", "mixed")),
]  # fmt: skip
SEARCH = [
    ("60 trials on 100,000 ratings, Hyperband: whole time over an Optuna loop around one process", 0.1, True),
    ("60 trials on 100,000 ratings, Hyperband: whole time over an Optuna loop around hogwild.train", 0.5, True),
    ("60 trials on 100,000 ratings, Hyperband: whole time over an Optuna loop around libmf", 1.0, True),
    ("the same: best RMSE, ours less the best of the three", 0.0, True),
    *((f"best NDCG@10 on Jester's likes, a search of a minute over {peer}", 1.0, False)
      for peer in ("the shipped config as it is", "LightFM's WARP", "implicit's BPR")),
    ("a trial of half a second", 0.35, True),
    ("25 million ratings, two trials at once: memory over one", 1.15, True),
    ("seeded kills of trials and of the search: kills", 300, False),
    *((f"seeded kills of trials and of the search: {what}", 0, True)
      for what in ("trials lost", "trials counted twice", "epochs trained twice")),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "asked"), [(named, NAMED), (search, SEARCH)])
def test_a_suite_has_every_figure_that_was_asked_for_with_its_target(suite, asked) -> None:  # type: ignore[no-untyped-def]
    figures = [figure for _, some in suite.SECTIONS.values() for figure in some]
    assert len(figures) == len(asked)
    for figure, (begin, target, is_most) in zip(figures, asked, strict=True):
        assert figure.name.startswith(begin) and (figure.target, figure.smaller_is_better) == (target, is_most)


def test_a_fifth_of_the_ids_of_each_block_of_clicks_is_new(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    ids = named.write_clicks(file, 3 * named.BLOCK)
    header, *lines = file.read_text().splitlines()
    assert header == "click,user,ad,site" and len(lines) == 3 * named.BLOCK
    known: set[str] = set()
    for block in range(3):
        rows = [line.split(",") for line in lines[block * named.BLOCK : (block + 1) * named.BLOCK]]
        seen = {name for _, *names in rows for name in names}
        assert block == 0 or 0.15 < len(seen - known) / len(seen) < 0.25
        assert 0.2 < sum(row[0] == "1" for row in rows) / len(rows) < 0.5
        known |= seen
    assert 0.9 * ids < len(known) <= ids


@pytest.mark.processes
def test_processes_are_killed_and_the_table_looked_at() -> None:
    found = named.killing(30, 1)
    assert found.pop("kills") >= 30 and found.pop("tables") == 1
    assert not any(found.values())


def test_the_search_that_is_measured_is_a_job_file(tmp_path: Path) -> None:
    parts = sparse_data.synthetic(tmp_path, Shape.part(0.001))
    file = search._written(tmp_path / "job", search._job(parts, 20, trials=60))
    job = load_job(file)
    assert job.search is not None and job.search.trials == 60 and job.train.epochs == 20
    assert yaml.safe_load(file.read_text())["search"]["space"].keys() == job.search.space.keys()
