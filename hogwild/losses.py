"""Losses of two classes that take labels as sparse data has them: -1 and +1, or 0 and 1."""

import torch.nn.functional as F
from torch import Tensor, nn


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
