"""Losses beside those of `torch.nn`: of two classes, of rankings, of words beside their contexts, of candidates.

A *candidate loss* takes scores (B, 2, 1 + K) of a knowledge graph's model, the right answer first, -inf for what is no
candidate. Of the model's other output, ranks (B, 2), each says 1 - MRR: the loss of an evaluation falls while the
answers get better."""

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
]


class LogisticLoss(nn.Module):
    """log(1 + exp(-y z)), the mean over the batch: `BCEWithLogitsLoss` for labels of either kind."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """output (B,), target (B,): above 0 is one class, anything else the other."""
        return F.binary_cross_entropy_with_logits(output, (target > 0).to(output.dtype))


class HingeLoss(nn.Module):
    """max(0, 1 - y z), the mean over the batch: a linear support vector machine (Cortes and Vapnik 1995)."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """output (B,), target (B,): above 0 is one class, anything else the other."""
        side = (target > 0).to(output.dtype) * 2 - 1
        return F.relu(1 - side * output).mean()


class Pairs(NamedTuple):
    """`scores` (P, 1 + K): of pairs of a context and the word it stands beside, then of that context and K negatives.
    `weights` (P, 1 + K): what each counts, 0 for a negative that is the word itself; per sample of the batch."""

    scores: Tensor
    weights: Tensor


class NegativeSampling(nn.Module):
    """-log sigmoid(score) of pairs that are there, -log sigmoid(-score) of those that are drawn: the sum over the pairs
    of a sample, the mean over the batch."""

    def forward(self, output: Pairs | Tensor, target: Tensor) -> Tensor:
        """`output` as SkipGram gives it; of a text `target` is not looked at. Of pairs of words, similarities (B,) and
        scores (B,) of people: the mean squared difference."""
        if isinstance(output, Tensor):
            return F.mse_loss(output, target.to(output.dtype))
        signs = torch.full_like(output.scores, -1.0)
        signs[:, 0] = 1.0
        return -(output.weights * F.logsigmoid(signs * output.scores)).sum()


class BprLoss(nn.Module):
    """The mean of log(1 + exp(-margin)). What is known about a sample is that it is there: no target is used."""

    def forward(self, margins: Tensor, target: Tensor) -> Tensor:
        """margins (B,), target (B,) -> a number."""
        return nn.functional.softplus(-margins).mean()


class CandidateLoss(nn.Module):
    """The sum of both questions of a triple, the mean over the batch. Targets are not looked at: the right answer is
    the first candidate."""

    kind: ClassVar[str]
    margin = 0.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Scores (B, 2, 1 + K) or ranks (B, 2) -> a number."""
        if output.dim() == 2:
            return 1.0 - output.reciprocal().mean()
        return self.each(output[..., 0], output[..., 1:]).sum(1).mean()

    def each(self, own: Tensor, others: Tensor) -> Tensor:
        """(B, 2) and (B, 2, K) -> (B, 2)"""
        raise NotImplementedError


class SoftmaxLoss(CandidateLoss):
    """Cross-entropy of the right answer among all candidates: PyTorch-BigGraph's `softmax`."""

    kind = "softmax"

    def each(self, own: Tensor, others: Tensor) -> Tensor:
        return torch.cat([own[..., None], others], 2).logsumexp(2) - own


class CandidateLogisticLoss(CandidateLoss):
    """Yes for the right answer, no for the others, which together weigh as much as it does."""

    kind = "logistic"

    def each(self, own: Tensor, others: Tensor) -> Tensor:
        return F.softplus(-own) + F.softplus(others).sum(2) / _negatives(others)


class MarginLoss(CandidateLoss):
    """The right answer should be `margin` above each of the others: how much it lacks, the mean over them."""

    kind = "margin"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def each(self, own: Tensor, others: Tensor) -> Tensor:
        return (self.margin - own[..., None] + others).clamp_min(0.0).sum(2) / _negatives(others)


def _negatives(others: Tensor) -> Tensor:
    return (others != -torch.inf).sum(2).clamp_min(1)
