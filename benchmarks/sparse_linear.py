"""Logistic regression on imdb's bag of words, beside scikit-learn's SGDClassifier and saga, and Vowpal Wabbit."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks import sparse_data
from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, speeds, starts

# SGDClassifier's rule, and a rate with which it is as good.
SGD = ("optimizer.class_path=torch.optim.SGD", "optimizer.init_args.lr=0.003", "lr_schedule.name=linear")
LONG = ("train.epochs=400",)  # seconds, of which the workers' start is little
# The shortest job of one worker that gets to the goal with each of the seeds; another worker starts too late to help.
SHORT = ("optimizer.init_args.lr=0.03", "train.max_updates=22", "evaluate.every_epochs=4")


def linear(suite: Suite) -> list[Row]:
    """About 3 minutes."""
    effort, ours = suite.effort, suite.ours
    parts = sparse_data.bag_of_words(suite.folder)
    rows_ = {
        "train": str(parts.train),
        "test": str(parts.test),
        "features": sparse_data.IMDB_FEATURES,
        "share": effort.share,
    }
    sgd: list[Found] = []
    others: dict[str, list[Found]] = {"saga": [], "vowpal": []}

    def peer() -> float:
        sgd.append(suite.peer("sgd_classifier", 1, **rows_, epochs=effort.sgd_epochs, seed=len(sgd) + 1))
        return sgd[-1].per_s

    def speed(procs: int) -> Callable[[], float]:
        return lambda: ours.speed("imdb", procs, *SGD, *LONG)

    first = ours.train("imdb", 2, "data.val=null", "train.epochs=1")
    one, two, theirs = in_turn(effort.runs, speed(1), speed(2), peer)
    adagrad = [ours.speed("imdb", procs, *LONG) for procs in (1, 2)]
    as_good = ours.train("imdb", 2, *SGD, "train.epochs=10", "evaluate.every_epochs=10", metric="accuracy")
    accurate = [ours.train("imdb", 2, f"seed={seed}", metric="accuracy") for seed in range(1, effort.runs + 1)]
    times: list[float | None] = []
    for seed in range(1, 2 * effort.runs):  # five: of runs of 0.02 s a busy neighbour spoils more
        short = ours.train("imdb", 1, *SHORT, f"seed={seed}", metric="accuracy")
        times.append(short.seconds if short.curve[-1][1] >= asked.GOAL_ACCURACY else None)
        how = {**rows_, "epochs": effort.sgd_epochs, "seed": seed}
        others["saga"].append(suite.peer("sgd_classifier", 1, **how, is_saga=True))
        others["vowpal"].append(suite.peer("vowpal", 2, **how))
    reached = {
        runs[0].note: seconds
        for runs in (sgd, *others.values())
        if None not in (seconds := [found.seconds_to(asked.GOAL_ACCURACY) for found in runs])
    }
    words = f"plain SGD as theirs; accuracy after 10 epochs {as_good.curve[-1][1]:.4f}"
    rows = [
        asked.over(asked.ROWS_OVER_SGD_CLASSIFIER[1], one, theirs, asked.SGD_CLASSIFIER, words),
        asked.over(asked.ROWS_OVER_SGD_CLASSIFIER[2], two, theirs, asked.SGD_CLASSIFIER, words),
        accuracy(accurate, [sgd, *others.values()]),
        time_to_accuracy(times, reached),
    ]
    rows += [
        Row(f"imdb: ours with Adagrad, {procs} worker{'s' * (procs > 1)}", "rows/s", None, [found])
        for procs, found in zip((1, 2), adagrad, strict=True)
    ]
    return [*rows, *speeds("imdb", "rows/s", [sgd, *others.values()]), *starts("imdb", [first, *accurate], [sgd[0]])]


def accuracy(ours: Sequence[Trained], peers: Sequence[Sequence[Found]]) -> Row:
    """The accuracy of the results, with the best that each peer had after any of its epochs."""
    words = (f"{runs[0].note} {statistics.fmean(one.best() for one in runs):.4f}" for runs in peers)
    row = asked.IMDB_ACCURACY.row([one.curve[-1][1] for one in ours], note=f"best epochs: {'; '.join(words)}")
    return replace(row, baseline=max(one.best() for runs in peers for one in runs), center="mean")


def time_to_accuracy(ours: Sequence[float | None], peers: dict[str, list[Any]]) -> Row:
    """Over the peer that is the fastest of those which get there in every run."""
    if not peers:
        return asked.TIME_TO_ACCURACY.row([], note="no peer got there")
    best = min(peers, key=lambda name: statistics.median(peers[name]))
    words = "; ".join(f"{name} {statistics.median(seconds):.3f} s" for name, seconds in peers.items())
    return asked.faster(asked.TIME_TO_ACCURACY, ours, peers[best], words)
