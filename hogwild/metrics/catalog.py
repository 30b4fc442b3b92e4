"""The metrics that a job may name, without torch: descriptions and directions. `hogwild.metrics` computes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

LOSS = "loss"
TOP = re.compile(r"top([1-9]\d{0,4})\Z")
RANKED = re.compile(r"(precision|recall|ndcg|map|mrr|coverage)@([1-9]\d{0,3})\Z")  # of recommenders
AUC = "auc"
JUDGED = {AUC, "accuracy", "log_loss", "calibration_error", "perplexity", "macro_f1"}  # of classes, or of yes and no
# Fields of an evaluation's record beside the metrics.
RECORDED = ("time", "kind", "event", "epoch", "updates", "samples", "seconds", "best", "train_loss")
MOST = 15  # metrics of one job, in addition to the loss: a result row has room for these (`result_row.py`)


@dataclass(frozen=True, slots=True)
class Known:
    """A metric's short description and direction."""

    words: str
    higher_is_better: bool


CATALOG: Mapping[str, Known] = {
    LOSS: Known("the job's loss over all samples; always reported", False),
    "accuracy": Known("share of correct predictions: the largest output, or a probability above 0.5", True),
    "top5": Known("share of targets among the k largest outputs; any k: top3, top10", True),
    "auc": Known("area under the ROC curve; several classes: one against the rest; recommenders: of each user", True),
    "log_loss": Known("mean negative logarithm of the probability of the target, without class weights", False),
    "calibration_error": Known("mean distance of a probability from the share that comes true, in ten groups", False),
    "perplexity": Known("exp of log_loss: the effective number of classes the model chooses between", False),
    "macro_f1": Known("mean of the F1 of all classes: rare classes count equally", True),
    "rmse": Known("root of the mean squared difference between output and target", False),
    "mae": Known("mean absolute difference between output and target", False),
    "episode_return": Known("rollouts: mean total reward of episodes, the target's last column where they end", True),
    "precision@10": Known("recommenders: share of held-out items among a user's best k of all items", True),
    "recall@10": Known("recommenders: share of a user's held-out items that are among the best k", True),
    "ndcg@10": Known("recommenders: normalised discounted cumulative gain of a user's best k", True),
    "map@10": Known("recommenders: mean average precision of a user's best k", True),
    "mrr@10": Known("recommenders: mean of 1 / rank of the first held-out item, 0 beyond k", True),
    "coverage@10": Known("recommenders: share of all items that are among somebody's best k", True),
}


def known(name: str) -> Known | None:
    """Return the catalog entry of a metric; None for a user's own, or an unknown name."""
    if (found := RANKED.match(name)) is not None:
        return CATALOG[f"{found.group(1)}@10"]
    return CATALOG["top5"] if TOP.match(name) else CATALOG.get(name)


def name_of(metric: Any, place: int) -> str:
    """Return the name under which a user's metric is reported: that of the function or of the object's class;
    `metric_2` for the second of a list, if it is a lambda."""
    while isinstance(metric, partial):
        metric = metric.func
    name = str(getattr(metric, "__name__", type(metric).__name__))
    return name if name.isidentifier() else f"metric_{place}"


def is_own(name: str) -> bool:
    """True for a class path: the user's own function of (outputs, targets)."""
    return "." in name
