"""Matrix factorisation: 25 M synthetic ratings of MovieLens-25M's shape, beside libmf and cmfrec; and Jester, whose 100
columns are in every worker's hands."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import sparse_data, sparse_peers
from benchmarks import sparse_figures as asked
from benchmarks.bench import in_turn
from benchmarks.row import Row
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_suite import Suite, speeds, starts
from benchmarks.synthetic_ratings import MILLION, Shape

FACTORS = 32
SPEED_EPOCHS = 3  # of 25 M ratings
SGD = (
    "optimizer.class_path=torch.optim.SGD", "optimizer.init_args.lr=0.04", "lr_schedule.name=linear",
    "model.init_args.l2=0.07",
)  # fmt: skip
SHORT = (*SGD, "train.epochs=7", "evaluate.every_epochs=7")  # ends just below the peers' best
LONG = (*SGD, "optimizer.init_args.lr=0.03", "model.init_args.l2=0.08", "train.epochs=12", "evaluate.every_epochs=12")


def factorisation(suite: Suite) -> list[Row]:
    """About 11 minutes, of which the peers take 8."""
    effort, ours = suite.effort, suite.ours
    parts = sparse_data.synthetic(suite.folder, Shape.part(effort.share))
    settings = ratings_settings(parts, FACTORS)
    first = ours.train("ratings", 2, *settings, "data.val=null", "train.epochs=1")
    ways = (partial(ours.speed, "ratings", procs, *settings, "train.epochs=20") for procs in (1, 2))
    one, two = in_turn(effort.runs, *ways)
    how: dict[str, Any] = {"train": str(parts.train), "test": str(parts.test), "factors": FACTORS}
    peers: dict[str, list[Found]] = {
        "cmf": [suite.peer("cmf", 2, **how, epochs=effort.mf_epochs)],
        "lib_mf": [suite.peer("lib_mf", 2, **how, epochs=effort.mf_epochs) for _ in range(effort.runs)],
    }
    alone = suite.peer("lib_mf", 1, **how, epochs=SPEED_EPOCHS, is_curve=False)
    goal = min(found.best(smaller_is_better=True) for runs in peers.values() for found in runs)
    runs, longer = (
        [ours.train("ratings", 2, *settings, *job, f"seed={seed}", metric="rmse") for seed in range(1, effort.runs + 1)]
        for job in (SHORT, LONG)
    )
    rows = [
        asked.second_worker(asked.SECOND_WORKER["mf"], one, two),
        to_their_rmse(runs, peers, goal),
        own_rmse(longer, peers, goal),
    ]
    rows += speeds("25 M ratings", "ratings/s", [*peers.values(), [alone]])
    return [*rows, *starts("25 M ratings", [first, *runs], [peers["lib_mf"][0]])]


def over_lib_mf(suite: Suite) -> list[Row]:
    """About 3 minutes."""
    effort, ours = suite.effort, suite.ours
    rows = []
    for name, shape, epochs, our_epochs in (
        ("a million", MILLION, 60, 1800),
        ("25 million", Shape.part(effort.share), SPEED_EPOCHS, 27),
    ):
        parts = sparse_data.synthetic(suite.folder, shape)
        settings = (*ratings_settings(parts, FACTORS), *SGD, f"train.epochs={our_epochs}")
        how: dict[str, Any] = {"train": str(parts.train), "test": str(parts.test), "factors": FACTORS}

        def they(how: dict[str, Any] = how, epochs: int = epochs) -> float:
            return suite.peer("lib_mf", 2, **how, epochs=epochs, is_curve=False).per_s

        mine, theirs = in_turn(effort.runs, partial(ours.speed, "ratings", 2, *settings), they)
        rows.append(asked.over(asked.RATINGS_OVER_LIB_MF[name], mine, theirs, asked.LIB_MF, "SGD, as theirs"))
    return rows


def ratings_settings(parts: sparse_data.Parts, factors: int) -> tuple[str, ...]:
    """The job of configs/ratings.yaml on other data."""
    files = {"train": parts.train.with_suffix(".csv"), "val": parts.test.with_suffix(".csv")}
    data = "data.{}={{class_path: hogwild.data.Ratings, init_args: {{path: '{}'}}}}"
    return (*(data.format(name, file) for name, file in files.items()), f"model.init_args.factors={factors}")


def to_their_rmse(ours: Sequence[Trained], peers: dict[str, list[Found]], goal: float) -> Row:
    """Our seconds to `goal`, the placing of the ratings in a grid included (it is in `share`, with that of the
    parameters in shared memory), over those of the peer that found it. Where that peer's other runs did not get as far,
    their own best is what they are asked for."""
    best = min(peers, key=lambda name: min(found.best(smaller_is_better=True) for found in peers[name]))
    theirs = []
    for found in itertools.islice(itertools.cycle(peers[best]), len(ours)):
        reached = max(goal, found.best(smaller_is_better=True))
        theirs.append(found.seconds_to(reached, smaller_is_better=True) or found.curve[-1][0])
    mine = [sparse_peers.seconds_to(run.curve, goal, smaller_is_better=True) for run in ours]
    with_grid = [None if spent is None else spent + run.start["share"] for spent, run in zip(mine, ours, strict=True)]
    return asked.faster(asked.TIME_TO_RMSE, with_grid, theirs, f"RMSE {goal:.4f}; {_bests(peers)}")


def own_rmse(ours: Sequence[Trained], peers: dict[str, list[Found]], goal: float) -> Row:
    own = [sparse_peers.best(run.curve, smaller_is_better=True) for run in ours]
    words = f"ours {min(own):.4f} in {ours[0].seconds:.1f} s; baseline: the peers' best; {_bests(peers)}"
    return asked.OWN_RMSE.row([value / goal for value in own], goal, words)


def _bests(peers: dict[str, list[Found]]) -> str:
    return "; ".join(
        f"{runs[0].note} best {min(one.best(smaller_is_better=True) for one in runs):.4f}" for runs in peers.values()
    )


def jester(suite: Suite) -> list[Row]:
    """About a minute."""
    settings = ("model.init_args.factors=16", "train.epochs=60")
    ways = (partial(suite.ours.speed, "jester", procs, *settings) for procs in (1, 2))
    one, two = in_turn(suite.effort.runs, *ways)
    return [asked.second_worker(asked.SECOND_WORKER["jester"], one, two)]
