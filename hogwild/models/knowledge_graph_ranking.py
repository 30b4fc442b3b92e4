"""Losses over a right answer and some wrong ones, ranks among all, and what is read from ranks.

The losses take a model's training output: scores (B, 2, 1 + K), the right answer first, -inf for what is no candidate.
Of its other output, ranks (B, 2), each of them says 1 - MRR: what an evaluation reports as the loss falls, as it
should, while the answers get better."""

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# ---- losses


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


class LogisticLoss(CandidateLoss):
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


# ---- ranks


def known_answers(triples: np.ndarray, entities: int, relations: int) -> np.ndarray:
    """(N, 3) -> (M,) int64, sorted, each once: question * entities + answer, where a question is entity * 2 * relations
    + relation, + relations for the head's. Raises ValueError where that is no 64-bit number."""
    if entities * entities * 2 * relations >= 2**63:
        raise ValueError(f"{entities:,} entities and {relations:,} relations are too many to be filtered")
    h, r, t = (triples[:, k].astype(np.int64) for k in range(3))
    tails = (h * (2 * relations) + r) * entities + t
    heads = (t * (2 * relations) + r + relations) * entities + h
    return np.unique(np.concatenate([tails, heads]))


def filtered_ranks(scores: Tensor, triples: Tensor, side: int, known: Tensor, relations: int) -> Tensor:
    """scores (B, entities), overwritten, of the tails (side 0) or heads (1) of triples (B, 3) -> ranks (B,) float32.
    `known` as `known_answers` gives it. A score that is NaN is worse as the right answer, and better as another, than
    all that are not: no model gains by it."""
    entities = scores.shape[1]
    answers = triples[:, 2 - 2 * side]
    own = scores.gather(1, answers[:, None])
    questions = (triples[:, 2 * side] * (2 * relations) + triples[:, 1] + relations * side) * entities
    first, stop = torch.searchsorted(known, questions), torch.searchsorted(known, questions + entities)
    counts = stop - first
    rows = torch.repeat_interleave(torch.arange(len(triples), device=known.device), counts)
    begins = counts.cumsum(0) - counts
    places = torch.arange(len(rows), device=known.device) - begins[rows] + first[rows]
    scores[rows, known[places] - questions[rows]] = -torch.inf
    scores.scatter_(1, answers[:, None], -torch.inf)
    tied = (scores == own).sum(1)
    above = (~(scores <= own)).sum(1)
    return 1.0 + above.float() + 0.5 * tied.float()


# ---- metrics of ranks (N, 2)


def mrr(ranks: Tensor, targets: Tensor) -> float:
    """Mean of 1 / rank, both questions."""
    return float(ranks.double().reciprocal().mean())


def _hits(k: int) -> Any:
    def hits(ranks: Tensor, targets: Tensor) -> float:
        return float((ranks <= k).double().mean())

    hits.__name__ = hits.__qualname__ = f"hits_{k}"
    hits.__doc__ = f"Share of right answers among the first {k}."
    hits.higher_is_better = True  # type: ignore[attr-defined]
    return hits


mrr.higher_is_better = True  # type: ignore[attr-defined]
hits_1, hits_3, hits_10 = _hits(1), _hits(3), _hits(10)
METRICS = (mrr, hits_1, hits_3, hits_10)
