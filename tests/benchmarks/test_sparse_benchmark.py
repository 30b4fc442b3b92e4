"""The sparse suite's own code: that its table is what was asked for, how a curve becomes a time, that a section's rows
replace its own and no others, that bytes are counted as the formulas say. No figure is looked at: those are measured on
a quiet machine, by `make bench-sparse`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="of the extra 'sparse'")

from benchmarks import roofline, sparse_curves, sparse_data, sparse_figures, sparse_ours, sparse_peers
from benchmarks.baselines import gensim_skipgram, lib_mf
from benchmarks.commands import CommandFailed
from benchmarks.row import Row
from benchmarks.sections import Sheet
from benchmarks.sparse_factorisation import own_rmse, to_their_rmse
from benchmarks.sparse_implicit import over_peers
from benchmarks.sparse_linear import time_to_accuracy
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import lost, speeds, starts
from hogwild.models import SkipGram

# The table that was asked for, written down once more: how the figure begins, its bound, whether that is from above.
ASKED = [
    ("logistic regression, imdb: rows/s over scikit-learn's SGDClassifier, 1 worker", 1.5, False),
    ("logistic regression, imdb: rows/s over scikit-learn's SGDClassifier, 2 workers", 2.7, False),
    ("logistic regression, imdb: test accuracy, mean of 3 seeds", 0.888, False),
    ("logistic regression, imdb: time to accuracy 0.8817", 4.0, False),
    ("matrix factorisation, 25 M ratings, k = 32: 2 workers over 1", 1.9, False),
    ("matrix factorisation, Jester, k = 16 (100 hot columns): 2 workers over 1", 1.7, False),
    ("matrix factorisation, 25 M ratings: time, grid included, to the peers' best RMSE", 4.0, False),
    ("matrix factorisation, 25 M ratings: own best test RMSE over the peers' best", 1.0, True),
    ("matrix factorisation, a million ratings, k = 32, 2 workers: ratings/s over libmf", 7.0, False),
    ("matrix factorisation, 25 million ratings, k = 32, 2 workers: ratings/s over libmf", 8.0, False),
    ("skip-gram, imdb text, dim 100, 2 workers: words/s over gensim", 6.5, False),
    ("skip-gram, the same: wordsim353 Spearman", 0.0, True),
    ("ComplEx, CoDEx-M, dim 200, 2 workers: triples/s over PyTorch-BigGraph", 10.0, False),
    ("ComplEx, CoDEx-M, dim 200, 2 workers, 1,000 negatives as theirs: triples/s", 6.0, False),
    ("ComplEx, the same: filtered MRR", 0.01, True),
    ("metrics at 10 of all items, 25,000 users x 100 items, dim 64, 2 workers: seconds over numpy", 0.3, True),
    ("metrics at 10 of all items, 6,000 users x 60,000 items, dim 64, 2 workers: seconds over numpy", 0.3, True),
    ("matrix factorisation, 100,000 ratings that grew by 5 % of users and items ten times: RMSE", 1.01, True),
    ("matrix factorisation, a million ratings that grew by 5 % of users and items ten times: RMSE", 1.01, True),
    ("matrix factorisation, 100,000 ratings that grew by 5 % of users and items ten times: seconds", 0.2, True),
    ("matrix factorisation, a million ratings that grew by 5 % of users and items ten times: seconds", 0.2, True),
    ("FTRL-proximal, a linear model, a9a, 1 worker: rows/s over Vowpal Wabbit", 2.0, False),
    ("field-aware factorisation machine, 4 factors, a9a, 1 worker: rows/s over Vowpal Wabbit", 2.0, False),
    ("FTRL-proximal, a linear model, a9a: test log loss, ours less Vowpal Wabbit's", 0.0, True),
    ("field-aware factorisation machine, 4 factors, a9a: test log loss, ours less Vowpal Wabbit's", 0.0, True),
    ("implicit ratings, Jester's above 0, k = 16, 2 workers: best NDCG@10 over the best of implicit's BPR", 1.0, False),
    ("implicit ratings, the same: time to that peer's best, over its own", 2.0, False),
    ("sparse nn.Embedding, batch 1024, one worker: updates/s over stock torch, Adagrad", 2.0, False),
    ("sparse nn.Embedding, batch 1024, one worker: updates/s over stock torch, SGD", 1.5, False),
]
CURVE = ((1.0, 0.5), (2.0, 0.9), (3.0, 0.7))


def found(per_s: float = 1.0, curve: Sequence[tuple[float, float]] = CURVE, note: str = "peer") -> Found:
    return Found(per_s, curve, "1.0", import_s=0.5, load_s=0.25, note=note)


def trained(curve: Sequence[tuple[float, float]] = CURVE, **startup: float) -> Trained:
    return Trained({"startup_s": 3.0, "train_s": 2.5, "paused_s": 0.5, "startup": startup, "samples_per_s": 2.0}, curve)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_suite_has_every_figure_that_was_asked_for_with_its_target() -> None:
    rows = [figure.row([1.0]) for figure in sparse_figures.ASKED]
    assert len(rows) == len(ASKED)
    for (begins, target, smaller), row in zip(ASKED, rows, strict=True):
        assert row.figure.startswith(begins)
        assert (row.target, row.smaller_is_better) == (target, smaller), row.figure


def test_every_figure_belongs_to_one_section() -> None:
    from benchmarks import sparse

    named = [figure.name for _, asked in sparse.SECTIONS.values() for figure in asked]
    assert sorted(named) == sorted(figure.name for figure in sparse_figures.ASKED)


def test_a_peer_far_slower_than_it_was_voids_its_row() -> None:
    figure = sparse_figures.WORDS_OVER_GENSIM
    slow = sparse_figures.over(figure, [5e6], [0.8 * 660_000], sparse_figures.GENSIM, like=True)
    assert (slow.met, slow.note[:4]) == (None, "void")
    assert sparse_figures.over(figure, [5e6], [660_000], sparse_figures.GENSIM, like=True).met is True
    elsewhere = sparse_figures.over(figure, [5e6], [660_00], sparse_figures.GENSIM, like=False)
    assert elsewhere.met is True and "another machine" in elsewhere.note


# ---- curves and times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "smaller_is_better", "seconds"),
    [(0.5, False, 1.0), (0.8, False, 2.0), (0.95, False, None), (0.6, True, 1.0), (0.4, True, None)],
)
def test_the_time_to_a_goal_is_that_of_the_first_point_which_meets_it(
    goal: float, smaller_is_better: bool, seconds: float | None
) -> None:
    assert found().seconds_to(goal, smaller_is_better=smaller_is_better) == seconds


def test_the_best_is_not_the_last() -> None:
    assert (found().best(), found().best(smaller_is_better=True), found().quality) == (0.9, 0.5, 0.7)


def test_the_fastest_peer_is_the_one_to_beat() -> None:
    row = time_to_accuracy([0.1, 0.05], {"slow": [2.0, 2.0], "fast": [0.4, 0.4]})
    assert row.runs == [4.0, 8.0] and row.baseline == 0.4 and row.met is True


def test_a_run_that_never_gets_there_is_no_times_faster() -> None:
    row = time_to_accuracy([None, None, 0.1], {"peer": [0.4, 0.4, 0.4]})
    assert row.value == 0.0 and row.met is False and "never" in row.note


def test_the_grid_is_in_the_time_to_an_rmse() -> None:
    peers = {
        "cmf": [found(curve=[(9.0, 0.95)])],
        "lib_mf": [found(curve=[(4.0, 0.9), (8.0, 0.8)]), found(curve=[(6.0, 0.8)])],
    }
    ours = [trained([(1.0, 0.85), (1.5, 0.79)], share_s=0.5), trained([(1.5, 0.8)], share_s=0.5)]
    assert to_their_rmse(ours, peers, goal=0.8).runs == [8.0 / 2.0, 6.0 / 2.0]
    own = own_rmse(ours, peers, goal=0.8)
    assert own.runs == pytest.approx([0.79 / 0.8, 1.0]) and own.met is True


def test_the_better_of_ours_meets_the_better_peer_run_by_run() -> None:
    ours = {"Bpr": [trained([(1.0, 0.3)])] * 2, "Warp": [trained([(1.0, 0.4), (2.0, 0.5)]), trained([(4.0, 0.45)])]}
    peers = {
        "a": [found(curve=[(1.0, 0.2)])] * 2,
        "b": [found(curve=[(8.0, 0.4), (9.0, 0.3)]), found(curve=[(8.0, 0.4)])],
    }
    best, time = over_peers(ours, peers, popular=0.1)
    assert best.runs == pytest.approx([0.5 / 0.4, 0.45 / 0.4]) and best.baseline == pytest.approx(0.4)
    assert time.runs == [8.0 / 1.0, 8.0 / 4.0]


def test_what_is_lost_is_of_the_means() -> None:
    row = lost(sparse_figures.SPEARMAN_LOST, [0.4, 0.6], [0.5, 0.5])
    assert row.center == "mean" and row.value == pytest.approx(0.0) and row.runs == pytest.approx([0.1, -0.1])


def test_a_run_without_pauses_gives_a_curve_by_its_samples(tmp_path: Path) -> None:
    records = [
        {"kind": "train", "samples": 10, "rmse": 9.0},
        {"kind": "evaluation", "samples": 100, "rmse": 0.9},
        {"kind": "evaluation", "samples": 200, "rmse": 0.8},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert sparse_ours.curve_of(tmp_path, {"samples_per_s": 50.0}, "rmse") == [(2.0, 0.9), (4.0, 0.8)]
    assert sparse_ours.training_s({"train_s": 3.0, "paused_s": 1.0}) == 2.0


def test_start_up_has_lines_of_its_own_and_names_its_parts() -> None:
    rows = starts("imdb", [trained(import_s=2.0, build_s=1.0), trained(), trained()], [found()])
    assert [(row.value, len(row.runs)) for row in rows] == [(3.0, 1), (3.0, 2), (0.75, 1)]
    assert rows[0].note == "import 2.00, build 1.00, compiling 0.00" and all(row.target is None for row in rows)


def test_a_peer_s_row_has_a_name_that_stays() -> None:
    ((row,), (again,)) = (speeds("imdb", "rows/s", [[found(note=f"peer, 2 threads; {s} s more")]]) for s in (1.1, 2.2))
    assert row.figure == again.figure == "imdb: peer, 2 threads"
    assert row.note == "quality of the last epoch 0.7000; 1.1 s more"


# ---- results that are put together from several calls ----------------------------------------------------------------


@pytest.mark.processes
def test_a_section_replaces_its_own_rows_and_leaves_the_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="of the extra 'bench'")
    from benchmarks import sparse

    sheet = Sheet(sparse.SUITE, tmp_path)
    sheet.put("linear", [Row("a", "x", 1.0, [2.0]), Row("b", "x", None, [2.0])], 10.0)
    sheet.put("mf", [Row("c", "x", 1.0, [0.5])], 20.0)
    sheet.put("linear", [Row("a", "x", 1.0, [3.0])], 30.0)
    kept = json.loads((tmp_path / "sparse.json").read_text())
    assert [(row["figure"], row["value"]) for row in kept["rows"]] == [("a", 3.0), ("b", 2.0), ("c", 0.5)]
    assert {name: said["took_s"] for name, said in kept["sections"].items()} == {"linear": 30, "mf": 20}
    assert all(said["date"] and said["commit"] for said in kept["sections"].values())
    assert (tmp_path / "sparse.md").exists() and (tmp_path / "sparse.png").exists()


def test_sections_come_in_the_order_of_the_suite_and_procs_mean_the_curves(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import sparse

    assert sparse.parsed(["--only", "mf,linear"]).only == ["linear", "mf"]
    assert sparse.parsed(["--procs", "4,1,2"]).only == [sparse.CURVES]
    assert sparse.parsed(["--procs", "4,1,2"]).procs == [1, 2, 4]
    assert sparse.parsed([]).only == [*sparse.SECTIONS, sparse.CURVES]
    for wrong in (["--only", "liner"], ["--procs", "0"], ["--procs", "two"]):
        with pytest.raises(SystemExit):
            sparse.parsed(wrong)
    assert "no section is called liner" in capsys.readouterr().err


def test_the_curves_are_drawn_and_say_what_the_limit_does(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="of the extra 'bench'")
    speeds = {("ours", "imdb", procs): [100.0 * procs, 110.0 * procs] for procs in (1, 2)}
    speeds["the limit", "imdb", 2], speeds["ours", "imdb", 4] = [250.0, 170.0], [200.0, 206.8]
    rows = sparse_curves.rows_of(speeds, (1, 2, 4), cores=2)
    assert [row.note for row in rows] == [
        "1.00 x 1 worker",
        "2.00 x 1 worker; 1.00 x the limit (baseline)",
        "1.94 x 1 worker; more workers than the 2 cores",
        "baseline: `--procs 2`, samples/s",
    ]
    assert rows[-1].runs == pytest.approx([1.0, 0.94]) and rows[-1].met
    sparse_curves.picture(speeds, tmp_path)
    assert (tmp_path / sparse_curves.PICTURE).stat().st_size > 10_000


# ---- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_peer_is_a_program_of_its_own_and_its_last_words_are_kept() -> None:
    with pytest.raises(CommandFailed, match="no_such_peer"):
        sparse_peers.run("no_such_peer", threads=1)


def test_a_product_of_factors_is_scored_in_parts_and_what_nobody_knows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_data, "ROWS_AT_ONCE", 2)
    users, items = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 1.0], [np.nan, np.nan]])
    table = {
        "user": np.array([0, 1, 0, 5], np.int32),
        "item": np.array([0, 0, 1, 0], np.int32),
        "rating": np.array([3.0, 3.0, 1.0, 2.0], np.float32),
    }
    # Products 3, 2, none (NaN), none (a user past the end): errors 0, -1, -1, -2.
    assert sparse_data.rmse(users, items, table) == pytest.approx(math.sqrt(6 / 4))
    assert sparse_data.rmse(users, items, table, np.array([0.0, 1.0, 1.0, 2.0])) == 0.0


def test_rows_are_scaled_to_length_one_and_an_empty_one_stays_empty() -> None:
    values, indptr = np.array([3.0, 4.0, 2.0], np.float32), np.array([0, 2, 2, 3, 3], np.int32)
    assert sparse_data.prepared(values, indptr, "l2").tolist() == pytest.approx([0.6, 0.8, 1.0])
    assert sparse_data.prepared(values, indptr, "counts") is values


def test_both_forms_of_the_ratings_hold_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="of the extra 'csv'")
    table = {
        "user": np.array([0, 7], np.int32),
        "item": np.array([3, 1], np.int32),
        "rating": np.array([4.5, 0.5], np.float32),
    }
    parts = sparse_data.save_ratings(tmp_path, "few", table, table)
    assert parts.train.with_suffix(".csv").read_text() == "userId,movieId,rating\n0,3,4.5\n7,1,0.5\n"
    with np.load(parts.test) as kept:
        assert {name: kept[name].tolist() for name in kept} == {name: column.tolist() for name, column in table.items()}


def test_libmf_s_own_table_is_read() -> None:
    lines = [
        "Using file found in x",
        "iter      tr_rmse      va_rmse          obj",
        "   0  1.20   0.9100  1e3",
        "   1  1.10  0.9000  9e2",
    ]
    assert lib_mf._validations(lines) == [0.91, 0.9]


def test_word_pairs_with_an_unknown_word_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="of the extra 'bench'")
    (tmp_path / "pairs.tsv").write_text("# a comment\nA\tb\t9\na\tc\t5\nb\tc\t1\na\tnone\t10\n")
    vectors = {"a": np.array([1.0, 0.0]), "b": np.array([1.0, 0.1]), "c": np.array([0.8, -0.6])}
    assert gensim_skipgram.spearman(vectors, str(tmp_path / "pairs.tsv")) == pytest.approx(1.0)


# ---- roofline --------------------------------------------------------------------------------------------------------


class Adagrad:
    """A rule by its name."""


class SGD:
    """A rule by its name."""


def shaped(*shape: int) -> Any:
    return SimpleNamespace(weight=SimpleNamespace(shape=shape))


def test_bytes_of_a_sparse_row() -> None:
    arrays = {"indices": np.zeros(300, np.int32), "target": np.zeros(10, np.float32)}
    assert roofline.linear(arrays, None, SGD()).nbytes == 30 * (8 + 8) + 20
    assert roofline.linear(arrays, None, Adagrad()).nbytes == 30 * (8 + 16) + 20


def test_bytes_of_a_rating() -> None:
    model = SimpleNamespace(user=shaped(100, 32), user_bias=None)
    assert roofline.factorisation({}, model, SGD()).nbytes == 2 * 2 * 32 * 4 + 20
    model.user_bias = shaped(100, 1)
    assert roofline.factorisation({}, model, Adagrad()).nbytes == 2 * 2 * 2 * 33 * 4 + 20


def test_bytes_of_a_word() -> None:
    arrays = {"counts": np.array([50, 50])}
    model = SkipGram(2, dim=100, sample=0.0, window=5, negatives=4, shared=True)
    assert roofline.skip_gram(arrays, model, SGD()).nbytes == (6 + 5) * 8 * 100 + 4
    model.shared = False
    assert roofline.skip_gram(arrays, model, SGD()).nbytes == (6 + 30) * 8 * 100 + 4
    # Both words are a half of the text: of each place, sqrt(1/2 / 1/2) + 1 is more than all; with 1/8, 1/2 + 1/4.
    model.shared, model.sample = True, 1 / 8
    assert roofline.skip_gram(arrays, model, SGD()).nbytes == pytest.approx(0.75 * 11 * 800 + 4)


def test_bytes_and_arithmetic_of_a_triple() -> None:
    model = SimpleNamespace(entities=shaped(1000, 200), negatives=128)
    traffic = roofline.knowledge_graph({}, model, SGD())
    assert traffic.nbytes == (4 + 2) * 8 * 200 + 20 and traffic.flops == 2 * 3 * 2 * 128 * 200


def test_a_fraction_is_bytes_times_speed_over_the_bandwidth() -> None:
    width = roofline.Bandwidth(triad=4e9, gather=2e9, scatter=1e9)
    rows = roofline.fractions("x", roofline.Traffic(100.0, "100"), [5e6, 1e6, 2e6], {"L2": width}, "note")
    assert [row.value for row in rows] == pytest.approx([100.0, 0.2, 0.2])
    assert rows[-1].baseline == 1e9


def test_the_bandwidths_are_measured() -> None:
    width = roofline.measured(1 << 16)
    assert min(width.triad, width.gather, width.scatter) > 1e6
