"""Ratings that grow: users and items by 5 % each, ten times. After each step one epoch from the last run's model
(`model.init_from`), beside a model trained anew: how much worse it is, and the share of the seconds of training.

    data of step 0, 1, … 10 ── anew, 10 epochs, each
                           '── step 0's model ── 1 epoch ── 1 epoch ── …"""

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import sparse_figures as asked
from benchmarks.bench import say
from benchmarks.row import Row
from benchmarks.sparse_data import save_ratings
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.sparse_suite import Suite
from benchmarks.synthetic_ratings import HUNDRED_THOUSAND, MILLION, Shape, Table, tables

STEPS, GROWTH = 10, 1.05
LR = "optimizer.init_args.lr=0.1"  # for ratings from 0.5 to 5


def growth(suite: Suite) -> list[Row]:
    """About ten minutes."""
    rows = []
    for name, shape in (("100,000", HUNDRED_THOUSAND), ("a million", MILLION)):
        some = Shape(
            *(max(200, round(suite.effort.share * whole)) for whole in (shape.users, shape.items, shape.ratings))
        )
        runs = [_grown(suite, some, seed) for seed in range(1, suite.effort.runs + 1)]
        notes = f"the worst of {STEPS} steps: {', '.join(f'{run.worst:.3f}' for run in runs)}"
        rows.append(asked.GROWN_RMSE[name].row([run.last for run in runs], None, notes))
        rows.append(asked.GROWN_TIME[name].row([run.share for run in runs], None, "all steps together"))
    return rows


class _Growth:
    """RMSE after a step over that of a model trained anew, step by step; seconds of training of both."""

    def __init__(self) -> None:
        self.ratios: list[float] = []
        self.ours_s = self.anew_s = 0.0

    last = property(lambda self: self.ratios[-1])
    worst = property(lambda self: max(self.ratios))
    share = property(lambda self: self.ours_s / self.anew_s)


def _grown(suite: Suite, shape: Shape, seed: int) -> _Growth:
    found, before = _Growth(), None
    parts = tables(shape, seed)
    random = np.random.default_rng(seed)
    places = {"user": random.permutation(shape.users), "item": random.permutation(shape.items)}
    for step in range(STEPS + 1):
        share = GROWTH ** (step - STEPS)
        there = [_part(table, places, share) for table in parts]
        files = save_ratings(suite.folder, f"grown-{shape.ratings}-{seed}-{step}", *there)
        train = partial(
            suite.ours.train, "ratings", 2, *ratings_settings(files, FACTORS), LR, f"seed={seed}", metric="rmse"
        )
        anew = train("evaluate.every_epochs=10")
        run = anew
        if before is not None:
            run = train(f"model.init_from={before}", "train.epochs=1")
            found.ratios.append(run.curve[-1][1] / anew.curve[-1][1])
            found.ours_s += run.seconds
            found.anew_s += anew.seconds
            say(f"step {step}: RMSE {found.ratios[-1]:.4f} of that of a model trained anew")
        before = Path(run.summary["run_dir"])
    return found


def _part(table: Table, places: dict[str, np.ndarray], share: float) -> Table:
    """Return the ratings of a share of the users and of the items, which are the same ones in every larger share."""
    is_there = np.ones(len(table["user"]), np.bool_)
    for name, place in places.items():
        is_there &= place[table[name]] < share * len(place)
    return {name: values[is_there] for name, values in table.items()}
