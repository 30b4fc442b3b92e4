"""The figures of the sparse models: `make bench-sparse`, about 50 minutes on 2 cores. Needs the data files
(`HOGWILD_DATA`). Run nothing else meanwhile.

    python -m benchmarks.sparse                       everything
    python -m benchmarks.sparse --only linear,mf      these sections; the rows of the others stay as they were, with
                                                      the day, commit and load of their own under `sections` in the JSON
    python -m benchmarks.sparse --procs 1,2,4,8,16    the curves alone, for these numbers of workers

Data that several programs read are prepared once, in a folder that goes away, or in `--folder`, which stays and makes
the next call shorter."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import (
    results,
    roofline,
    sparse_clicks,
    sparse_curves,
    sparse_embedding,
    sparse_factorisation,
    sparse_figures,
    sparse_graph,
    sparse_growth,
    sparse_implicit,
    sparse_linear,
    sparse_ranking,
    sparse_words,
)
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.sections import Sheet, chosen, measure
from benchmarks.sparse_suite import FULL, QUICK, Suite

SUITE = "sparse"
CURVES = "curves"
PROCS = (1, 2, 4)

Measure = Callable[[Suite], list[Row]]
SECTIONS: dict[str, tuple[Measure, tuple[Figure, ...]]] = {
    "linear": (
        sparse_linear.linear,
        (
            *sparse_figures.ROWS_OVER_SGD_CLASSIFIER.values(),
            sparse_figures.IMDB_ACCURACY,
            sparse_figures.TIME_TO_ACCURACY,
        ),
    ),
    "mf": (
        sparse_factorisation.factorisation,
        (sparse_figures.SECOND_WORKER["mf"], sparse_figures.TIME_TO_RMSE, sparse_figures.OWN_RMSE),
    ),
    "libmf": (sparse_factorisation.over_lib_mf, tuple(sparse_figures.RATINGS_OVER_LIB_MF.values())),
    "jester": (sparse_factorisation.jester, (sparse_figures.SECOND_WORKER["jester"],)),
    "words": (sparse_words.words, (sparse_figures.WORDS_OVER_GENSIM,)),
    "skipgram": (sparse_words.skip_gram, (sparse_figures.SPEARMAN_LOST,)),
    "graph": (
        sparse_graph.graph,
        (sparse_figures.TRIPLES_OVER_BIG_GRAPH, sparse_figures.TRIPLES_AT_EQUAL, sparse_figures.MRR_LOST),
    ),
    "ranking": (sparse_ranking.ranking, tuple(sparse_figures.RANKING_OVER_NUMPY.values())),
    "growth": (
        sparse_growth.growth,
        (*sparse_figures.GROWN_RMSE.values(), *sparse_figures.GROWN_TIME.values()),
    ),
    "clicks": (
        sparse_clicks.clicks,
        (*sparse_figures.ROWS_OVER_VOWPAL.values(), *sparse_figures.LOG_LOSS_LOST.values()),
    ),
    "implicit": (sparse_implicit.implicit, (sparse_figures.IMPLICIT_NDCG, sparse_figures.TIME_TO_NDCG)),
    "embedding": (sparse_embedding.embedding, tuple(sparse_figures.EMBEDDING.values())),
    "roofline": (roofline.rows, ()),
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = parsed(argv)
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds a9a/, imdb/, jester/, codex-m/ and word-similarity/")
    effort = QUICK if asked.quick else FULL
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        folder = Path(scratch) if asked.folder is None else asked.folder
        sheet = Sheet(SUITE, Path(scratch) if asked.quick else results.FOLDER)
        suite = Suite(folder, effort)
        for name in asked.only:
            began = time.monotonic()
            if name == CURVES:
                rows, speeds = sparse_curves.speed_up(suite, asked.procs)
                sparse_curves.picture(speeds, Path(scratch) if asked.quick else results.FOLDER)
            else:
                run, figures = SECTIONS[name]
                rows = measure(name, partial(run, suite), figures)
            sheet.put(name, rows, time.monotonic() - began)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """`only`: the sections in the order of the suite; `procs` numbers, rising."""
    parser = argparse.ArgumentParser(description="Measures the sparse models; about 40 minutes on 2 cores.")
    names = (*SECTIONS, CURVES)
    parser.add_argument("--only", type=partial(chosen, names), metavar="NAME,…", help=f"of {', '.join(names)}")
    parser.add_argument("--procs", type=numbers, metavar="N,…", help="the curves alone, for these numbers of workers")
    parser.add_argument("--folder", type=Path, help="where prepared data and our runs stay")
    parser.add_argument("--quick", action="store_true", help="a little of each; proves that it runs, keeps nothing")
    asked = parser.parse_args(argv)
    if asked.only is None:
        asked.only = list(names) if asked.procs is None else [CURVES]
    asked.procs = asked.procs or list(PROCS)
    if asked.folder is not None:
        asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


def numbers(text: str) -> list[int]:
    """Raises ArgumentTypeError where one is no number of workers."""
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise argparse.ArgumentTypeError(f"numbers of workers, as in 1,2,4; not {text}")
    return counts


if __name__ == "__main__":
    main()
