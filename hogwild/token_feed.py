"""Batches of a text, for autograd: each sample is the place of a word, with the words around it."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from hogwild.batches import EpochPlan
from hogwild.feeds import Batch
from hogwild.orders import Order

if TYPE_CHECKING:
    from hogwild.packed import Packed

NO_WORD = -1


class TokenFeed:
    """Windows (B, 2 c + 1) int32 of words, the sample's own in the middle, -1 where its sentence has none; c is the
    size `context`. The target (B,) int32 is the word itself. Views of buffers that stay where they are."""

    def __init__(self, packed: "Packed", plan: EpochPlan, order: Order) -> None:
        self._plan, self._order = plan, order
        arrays, context = packed.arrays(), packed.spec.sizes["context"]
        self._tokens, self._starts = arrays["tokens"], arrays["starts"]
        self._around = np.arange(-context, context + 1)
        self._windows = np.empty((plan.largest, 2 * context + 1), np.int32)
        self._targets = np.empty(plan.largest, np.int32)

    def gather(self, epoch: int, batch: int) -> Batch:
        """The windows of batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        chosen = self._order.indices(epoch, first, last)
        windows, targets = self._windows[: last - first], self._targets[: last - first]
        sentence = np.searchsorted(self._starts, chosen, side="right")
        places = chosen[:, None] + self._around
        outside = (places < self._starts[sentence - 1, None]) | (places >= self._starts[sentence, None])
        # Places before the text or behind it are outside, too: what "clip" reads there is not kept.
        self._tokens.take(places, out=windows, mode="clip")
        windows[outside] = NO_WORD
        self._tokens.take(chosen, out=targets, mode="clip")
        return Batch((torch.from_numpy(windows),), torch.from_numpy(targets), first, last - first)
