"""Spearman rank correlation: how alike two orders of the same things are."""

from torch import Tensor


def spearman(outputs: Tensor, targets: Tensor) -> float:
    """Spearman's rank correlation of outputs (N,) with targets (N,), ties at the middle of their ranks; NaN where one
    of them is all alike. A metric: `evaluate.metrics: [hogwild.metrics.rank_correlation.spearman]`."""
    a, b = (_ranks(side.detach().double().reshape(-1)) for side in (outputs, targets))
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())


def _ranks(values: Tensor) -> Tensor:
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    middle: Tensor = (sizes.cumsum(0) - (sizes - 1) / 2).double()
    return middle[group]
