"""The targets of the sparse models, figure by figure: names and targets stand here and nowhere else. A ratio is
ours over a peer, both measured in turn in the same minutes; `figures.py` says when a row is void."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.figures import ENOUGH, Figure, is_like_machine
from benchmarks.row import Row

SGD_CLASSIFIER, GENSIM, BIG_GRAPH, LIB_MF = "SGDClassifier", "gensim", "PyTorch-BigGraph", "libmf"

ROWS_OVER_SGD_CLASSIFIER = {
    procs: Figure(
        f"logistic regression, imdb: rows/s over scikit-learn's SGDClassifier, {procs} worker{'s' * (procs > 1)}", x
    )
    for procs, x in ((1, 1.5), (2, 2.7))
}
IMDB_ACCURACY = Figure("logistic regression, imdb: test accuracy, mean of 3 seeds, 2 workers", 0.888, "")
GOAL_ACCURACY = 0.8817
TIME_TO_ACCURACY = Figure(
    f"logistic regression, imdb: time to accuracy {GOAL_ACCURACY}, 1 worker, over the best peer", 4.0, "x faster"
)
SECOND_WORKER = {
    "mf": Figure("matrix factorisation, 25 M ratings, k = 32: 2 workers over 1", 1.9),
    "jester": Figure("matrix factorisation, Jester, k = 16 (100 hot columns): 2 workers over 1", 1.7),
}
TIME_TO_RMSE = Figure(
    "matrix factorisation, 25 M ratings: time, grid included, to the peers' best RMSE, 2 workers, over the best peer "
    "with 2 threads", 4.0, "x faster",
)  # fmt: skip
OWN_RMSE = Figure(
    "matrix factorisation, 25 M ratings: own best test RMSE over the peers' best", 1.0, "", smaller_is_better=True
)
RATINGS_OVER_LIB_MF = {
    name: Figure(f"matrix factorisation, {name} ratings, k = 32, 2 workers: ratings/s over libmf with 2 threads", x)
    for name, x in (("a million", 7.0), ("25 million", 8.0))
}
WORDS_OVER_GENSIM = Figure("skip-gram, imdb text, dim 100, 2 workers: words/s over gensim with 2 threads", 6.5)
SPEARMAN_LOST = Figure(
    "skip-gram, the same: wordsim353 Spearman, gensim's less ours after 3 epochs, means of 3 seeds", 0.0, "",
    smaller_is_better=True,
)  # fmt: skip
TRIPLES_OVER_BIG_GRAPH = Figure("ComplEx, CoDEx-M, dim 200, 2 workers: triples/s over PyTorch-BigGraph", 10.0)
TRIPLES_AT_EQUAL = Figure(
    "ComplEx, CoDEx-M, dim 200, 2 workers, 1,000 negatives as theirs: triples/s over PyTorch-BigGraph", 6.0
)
MRR_LOST = Figure(
    "ComplEx, the same: filtered MRR, PyTorch-BigGraph's less ours after the same epochs", 0.01, "",
    smaller_is_better=True,
)  # fmt: skip
RANKING_OVER_NUMPY = {
    shape: Figure(
        f"metrics at 10 of all items, {shape[0]:,} users x {shape[1]:,} items, dim 64, 2 workers: seconds over numpy's "
        "argpartition",
        0.3,
        smaller_is_better=True,
    )
    for shape in ((25_000, 100), (6_000, 60_000))
}
GROWN_RMSE, GROWN_TIME = (
    {
        name: Figure(
            f"matrix factorisation, {name} ratings that grew by 5 % of users and items ten times: {what}", x, unit, True
        )
        for name in ("100,000", "a million")
    }
    for what, x, unit in (
        ("RMSE with one epoch each over training anew", 1.01, ""),
        ("seconds of training over training anew", 0.2, "x"),
    )
)
_MACHINES = {"ftrl": "FTRL-proximal, a linear model", "ffm": "field-aware factorisation machine, 4 factors"}
ROWS_OVER_VOWPAL = {
    model: Figure(f"{words}, a9a, 1 worker: rows/s over Vowpal Wabbit", 2.0) for model, words in _MACHINES.items()
}
LOG_LOSS_LOST = {
    model: Figure(
        f"{words}, a9a: test log loss, ours less Vowpal Wabbit's, means of 3 seeds", 0.0, "", smaller_is_better=True
    )
    for model, words in _MACHINES.items()
}
IMPLICIT_NDCG = Figure(
    "implicit ratings, Jester's above 0, k = 16, 2 workers: best NDCG@10 over the best of implicit's BPR and LightFM's "
    "WARP", 1.0,
)  # fmt: skip
TIME_TO_NDCG = Figure("implicit ratings, the same: time to that peer's best, over its own", 2.0, "x faster")
EMBEDDING = {
    "Adagrad": Figure("sparse nn.Embedding, batch 1024, one worker: updates/s over stock torch, Adagrad", 2.0),
    "SGD": Figure("sparse nn.Embedding, batch 1024, one worker: updates/s over stock torch, SGD", 1.5),
}

ASKED = (
    *ROWS_OVER_SGD_CLASSIFIER.values(), IMDB_ACCURACY, TIME_TO_ACCURACY, *SECOND_WORKER.values(), TIME_TO_RMSE,
    OWN_RMSE, *RATINGS_OVER_LIB_MF.values(), WORDS_OVER_GENSIM, SPEARMAN_LOST, TRIPLES_OVER_BIG_GRAPH,
    TRIPLES_AT_EQUAL, MRR_LOST,
    *RANKING_OVER_NUMPY.values(), *GROWN_RMSE.values(), *GROWN_TIME.values(), *ROWS_OVER_VOWPAL.values(),
    *LOG_LOSS_LOST.values(), IMPLICIT_NDCG, TIME_TO_NDCG, *EMBEDDING.values(),
)  # fmt: skip

# Samples a second of the peers where the targets were set, on the machine that `figures.LIKE` names: imdb's 25,000 rows
# in 0.0143 s; two threads of gensim. PyTorch-BigGraph was measured on other data, with other negatives.
WHEN_ASKED: Mapping[str, float] = {SGD_CLASSIFIER: 25_000 / 0.0143, GENSIM: 660_000}


def over(
    figure: Figure,
    ours: Sequence[float],
    theirs: Sequence[float],
    peer: str,
    note: str = "",
    *,
    like: bool | None = None,
) -> Row:
    """Ours over a peer's, run by run, both in samples a second; void where the peer is far slower than it was, if that
    is known. `like`: whether the machine is like the one where it was; found out where it is not given."""
    median = statistics.median(theirs)
    words = f"ours {statistics.median(ours):,.0f} a second; baseline: {peer}, a second"
    row = figure.row([a / b for a, b in zip(ours, theirs, strict=True)], median, "; ".join(filter(None, [words, note])))
    if peer not in WHEN_ASKED:
        return row
    if not (is_like_machine() if like is None else like):
        row.note += "; another machine than the one the baseline's floor comes from"
        return row
    floor = ENOUGH * WHEN_ASKED[peer]
    return row.void(f"{peer} ran at {median:,.0f}, below {floor:,.0f}") if median < floor else row


def faster(figure: Figure, ours: Sequence[float | None], theirs: Sequence[float], note: str = "") -> Row:
    """The seconds of a peer over ours, run by run. A run of ours that never got there is no times faster."""
    ratios = [0.0 if mine is None else other / mine for mine, other in zip(ours, theirs, strict=True)]
    seconds = ", ".join("never" if mine is None else f"{mine:.3g} s" for mine in ours)
    return figure.row(
        ratios, statistics.median(theirs), f"ours {seconds}; baseline in seconds" + (note and f": {note}")
    )


def second_worker(figure: Figure, one: Sequence[float], two: Sequence[float], note: str = "") -> Row:
    """Two workers over one, run by run."""
    words = f"2 workers {statistics.median(two):,.0f} samples/s; baseline: 1 worker, samples/s"
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    return figure.row(ratios, statistics.median(one), "; ".join(filter(None, [words, note])))
