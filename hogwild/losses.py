"""Losses beside those of `torch.nn`: for two classes, rankings, words in contexts, and candidates.

A *candidate loss* takes the scores (B, 2, 1 + K) of a knowledge graph model, the right answer first, -inf for
non-candidates. From the model's other output, ranks (B, 2), each returns 1 - MRR, so that an evaluation loss falls
while the answers improve."""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "BprLoss",
    "CandidateLogisticLoss",
    "CandidateLoss",
    "HingeLoss",
    "LogisticLoss",
    "MarginLoss",
    "NegativeSampling",
    "Pairs",
    "SoftmaxLoss",
    "Violations",
    "WarpLoss",
]


class LogisticLoss(nn.Module):
    """Logistic loss, log(1 + exp(-y z)), the mean over the batch: `BCEWithLogitsLoss` for labels 0 and 1, or -1 and 1.

    Arguments:
        positive_weight: how many times a sample of class 1 counts. With 1 the outputs' probabilities are
            those of the data; with more, rare positives are found more often, and their probabilities are too high."""

    def __init__(self, positive_weight: float = 1.0) -> None:
        super().__init__()
        if not 0 < positive_weight < float("inf"):
            raise ValueError(f"positive_weight must be a finite number above 0, got {positive_weight}")
        self.positive_weight = positive_weight

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of output (B,); in target (B,) 1 is one class, 0 or -1 the other."""
        return self.by_sample(output, target).mean()

    def by_sample(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the losses (B,)."""
        wanted = (target > 0).to(output.dtype)
        weight = None if self.positive_weight == 1 else 1 + (self.positive_weight - 1) * wanted
        return F.binary_cross_entropy_with_logits(output, wanted, weight, reduction="none")


class HingeLoss(nn.Module):
    """Hinge loss, max(0, 1 - y z), the mean over the batch: a linear support vector machine (Cortes and Vapnik
    1995). Labels are 0 and 1, or -1 and 1."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of output (B,); in target (B,) 1 is one class, 0 or -1 the other."""
        return self.by_sample(output, target).mean()

    def by_sample(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the losses (B,)."""
        side = (target > 0).to(output.dtype) * 2 - 1
        return F.relu(1 - side * output)


class Pairs(NamedTuple):
    """Scores and weights of (context, word) pairs. `scores` (P, 1 + K): the true word, then K negatives for its
    context. `weights` (P, 1 + K): 0 for a negative equal to the word; divided by the samples of the batch."""

    scores: Tensor
    weights: Tensor


class NegativeSampling(nn.Module):
    """Negative sampling loss: -log sigmoid(score) for true pairs, -log sigmoid(-score) for drawn pairs; the sum over
    the pairs of a sample, the mean over the batch."""

    def forward(self, output: Pairs | Tensor, target: Tensor) -> Tensor:
        """Return the loss of `output` as SkipGram returns it. For text, `target` is not used. For word pairs, `output`
        holds similarities (B,) and `target` human scores (B,): the mean squared difference."""
        if isinstance(output, Tensor):
            return F.mse_loss(output, target.to(output.dtype))
        signs = torch.full_like(output.scores, -1.0)
        signs[:, 0] = 1.0
        return -(output.weights * F.logsigmoid(signs * output.scores)).sum()


class _ConfidentLoss(nn.Module):
    """Base class: a loss of pairs in which a rating, or a count, is a weight."""

    def __init__(self, alpha: float = 0.0) -> None:
        super().__init__()
        if not alpha >= 0:
            raise ValueError(f"alpha is {alpha}; it must not be negative")
        self.alpha = alpha

    def _mean(self, losses: Tensor, target: Tensor) -> Tensor:
        """Return the mean of losses (B,), weighted if there is an alpha."""
        return (losses * (1 + self.alpha * target.clamp_min(0))).mean() if self.alpha else losses.mean()


class BprLoss(_ConfidentLoss):
    """Bayesian personalised ranking: the mean of log(1 + exp(-margin)). Every sample is a positive observation.

    Arguments:
        alpha: a sample has the weight 1 + alpha * count, or rating (Hu, Koren and Volinsky 2008), negative ones as 0;
            0: all weigh the same. The larger the weights, the smaller the learning rate."""

    def forward(self, margins: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of margins (B,); target (B,): counts or ratings."""
        return self._mean(F.softplus(-margins), target)


class Violations(NamedTuple):
    """Pairs in which an item that the user does not have scores too high. `margins` (B,): how much higher the user's
    own item scores; `weights` (B,): H(its estimated rank), H(r) = 1 + 1/2 + ... + 1/r; 0 where none was found."""

    margins: Tensor
    weights: Tensor


class WarpLoss(_ConfidentLoss):
    """WARP, weighted approximate-rank pairwise (Weston, Bengio and Usunier 2011): the mean of weight * max(0, 1 -
    margin); in evaluation all weights are 1.

    Arguments:
        alpha: as BprLoss's."""

    def forward(self, output: Violations | Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of violations, or of margins (B,); target (B,): counts or ratings."""
        margins, weights = (output, 1.0) if isinstance(output, Tensor) else output
        return self._mean(weights * F.relu(1 - margins), target)


class CandidateLoss(nn.Module):
    """The sum over both questions of a triple, the mean over the batch. Targets are not used: the right answer is the
    first candidate."""

    kind: ClassVar[str]
    margin = 0.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return a scalar from scores (B, 2, 1 + K) or ranks (B, 2)."""
        if output.dim() == 2:
            return 1.0 - output.reciprocal().mean()
        return self.each(output).sum(1).mean()

    def each(self, scores: Tensor) -> Tensor:
        """Return (B, 2) losses from (B, 2, 1 + K) scores."""
        raise NotImplementedError


class SoftmaxLoss(CandidateLoss):
    """Cross-entropy of the right answer among all candidates: PyTorch-BigGraph's `softmax`."""

    kind = "softmax"

    def each(self, scores: Tensor) -> Tensor:
        return -scores.log_softmax(2)[..., 0]  # no copy of the scores, which may be those of all entities


class CandidateLogisticLoss(CandidateLoss):
    """Logistic loss: yes for the right answer, no for the others, which together have the same weight."""

    kind = "logistic"

    def each(self, scores: Tensor) -> Tensor:
        own, others = scores[..., 0], scores[..., 1:]
        return F.softplus(-own) + F.softplus(others).sum(2) / _negatives(others)


class MarginLoss(CandidateLoss):
    """Hinge loss: the right answer should score higher than each other candidate; the mean of the shortfalls.

    Arguments:
        margin: how much higher."""

    kind = "margin"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def each(self, scores: Tensor) -> Tensor:
        own, others = scores[..., 0], scores[..., 1:]
        return (self.margin - own[..., None] + others).clamp_min(0.0).sum(2) / _negatives(others)


def _negatives(others: Tensor) -> Tensor:
    return (others != -torch.inf).sum(2).clamp_min(1)
