"""Metrics of ranks: the correlation of two rankings, and the ranks of right answers."""

from torch import Tensor


def spearman(outputs: Tensor, targets: Tensor) -> float:
    """Return Spearman's rank correlation of outputs (N,) with targets (N,), ties at their mean rank; NaN if one of them
    is constant. A metric: `evaluate.metrics: [hogwild.metrics.spearman]`."""
    a, b = (mean_ranks(side.detach().double().reshape(-1)) for side in (outputs, targets))
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())


def mean_ranks(values: Tensor) -> Tensor:
    """Return the rank of each of the values (N,) from 1 on, float64; tied ones get the mean of their ranks."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    middle: Tensor = (sizes.cumsum(0) - (sizes - 1) / 2).double()
    return middle[group]


def mrr(ranks: Tensor, targets: Tensor) -> float:
    """Return the mean reciprocal rank of ranks (N, 2), one for each question of a triple."""
    return float(ranks.double().reciprocal().mean())


def hits_1(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers that are ranked first, of ranks (N, 2)."""
    return _hits(ranks, 1)


def hits_3(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers among the first 3, of ranks (N, 2)."""
    return _hits(ranks, 3)


def hits_10(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers among the first 10, of ranks (N, 2)."""
    return _hits(ranks, 10)


def _hits(ranks: Tensor, k: int) -> float:
    return float((ranks <= k).double().mean())


OF_RANKS = (mrr, hits_1, hits_3, hits_10)
for _metric in (spearman, *OF_RANKS):
    vars(_metric)["higher_is_better"] = True
