"""Implicit ratings: what people like of Jester's jokes (a rating above 0), a tenth of the pairs held out; NDCG@10 of
all items, beside implicit's BPR and LightFM's WARP with as many factors, and beside the most popular items."""

from typing import Any

import numpy as np

from benchmarks import sparse_data, sparse_peers
from benchmarks import sparse_figures as asked
from benchmarks.row import Row
from benchmarks.sparse_data import Parts
from benchmarks.sparse_ours import Trained
from benchmarks.sparse_peers import Found
from benchmarks.sparse_ranking import ndcg
from benchmarks.sparse_suite import Suite, speeds

FACTORS = 16
# Each with the rate and the penalty that were best of a few tried; the peers' stand in their programs.
OURS = {"Bpr": (0.05, 0.02), "Warp": (0.02, 0.05)}
PEERS = ("implicit_bpr", "light_fm")


def implicit(suite: Suite) -> list[Row]:
    """About six minutes."""
    parts, epochs = sparse_data.liked(suite.folder), suite.effort.implicit_epochs
    ours: dict[str, list[Trained]] = {kind: [] for kind in OURS}
    peers: dict[str, list[Found]] = {peer: [] for peer in PEERS}
    how: dict[str, Any] = {"train": str(parts.train), "test": str(parts.test), "factors": FACTORS, "epochs": epochs}
    for number in range(suite.effort.runs):
        for kind, runs in ours.items():
            runs.append(_ours(suite, kind, parts, epochs, seed=number + 1))
        for peer, found in peers.items():
            found.append(suite.peer(peer, 2, **how, seed=number + 1))
    return [*over_peers(ours, peers, _popular(parts)), *speeds("implicit ratings", "pairs/s", [*peers.values()])]


def _ours(suite: Suite, kind: str, parts: Parts, epochs: int, seed: int) -> Trained:
    rate, l2 = OURS[kind]
    data = "data.{}={{class_path: hogwild.data.Ratings, init_args: {{path: '{}'}}}}"
    return suite.ours.train(
        "implicit", 2, data.format("train", parts.train.with_suffix(".csv")),
        data.format("val", parts.test.with_suffix(".csv")), f"model.class_path=hogwild.models.{kind}Factorization",
        f"model.init_args={{factors: {FACTORS}, l2: {l2}}}", f"loss.class_path=hogwild.losses.{kind}Loss",
        f"optimizer.init_args.lr={rate}", f"train.epochs={epochs}", "evaluate.every_epochs=1", f"seed={seed}",
        metric="ndcg@10",
    )  # fmt: skip


def over_peers(ours: dict[str, list[Trained]], peers: dict[str, list[Found]], popular: float) -> list[Row]:
    """The better of ours over the better peer, by the mean of the runs' bests: its best, and the seconds to the peer's,
    run by run."""
    bests = {name: [sparse_peers.best(run.curve) for run in runs] for name, runs in (ours | peers).items()}
    means = {name: float(np.mean(found)) for name, found in bests.items()}
    own, peer = (max(names, key=lambda name: means[name]) for names in (ours, peers))
    words = "; ".join(f"{name} {mean:.4f}" for name, mean in means.items())
    ratios = [best / means[peer] for best in bests[own]]
    pairs = [*zip(ours[own], peers[peer], bests[peer], strict=True)]
    mine = [sparse_peers.seconds_to(run.curve, goal) for run, _, goal in pairs]
    theirs = [found.seconds_to(goal) or found.curve[-1][0] for _, found, goal in pairs]
    return [
        asked.IMPLICIT_NDCG.row(ratios, means[peer], f"{words}; the most popular {popular:.4f}; baseline: {peer}"),
        asked.faster(asked.TIME_TO_NDCG, mine, theirs, f"{own} to the best of {peer}"),
    ]


def _popular(parts: Parts) -> float:
    counts = np.bincount(np.load(parts.train)["item"]).astype(np.float32)
    users = int(np.load(parts.train)["user"].max()) + 1
    return ndcg(np.zeros((users, 1), np.float32), np.zeros((len(counts), 1), np.float32), counts, parts)
