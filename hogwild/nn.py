"""Modules for tables whose rows are asked for by name."""

import math
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hogwild.errors import ModelError, UsageError
from hogwild.kernels.signatures import FREE, has_numba, row_claims

__all__ = ["NamedEmbedding"]
NO_COUNTS = np.zeros(0, np.int32)


@cache
def _kernel() -> Any:
    """Return `row_claims.find`, compiled or from the cache of kernels. numba is imported here, half a second."""
    from hogwild.kernels import kernel_cache
    from hogwild.kernels.row_claims import find

    kernel_cache.make_ready(row_claims())
    return find


class NamedEmbedding(nn.Embedding):
    """A table of embeddings that is asked for by any int64 id, such as a user's number or the hash of a text. An id not
    seen before gets a row of its own in its first training batch, in all worker processes the same one.

        ids (…,) int64  ->  rows (…, dim) float32

    Arguments:
        dim: numbers in a row.
        capacity: ids that have a row of their own at most. Further ones share the last row, the default row.
        min_count: an id gets its row when training sees it for the so-manieth time; before that it uses the default
            row. Counted in a sketch of 4 * capacity cells, which may count an id too often, never too rarely (Cormode
            and Muthukrishnan, "An improved data stream summary: the count-min sketch", 2005).
        sparse: gradients hold only the touched rows; false for optimizers that need dense ones.
        std: standard deviation of initial values; 1 / sqrt(dim) by default.

    Outside of training (`eval()`) nothing is claimed: an unknown id has the default row. `named()` returns the ids and
    their rows. Parameters: `weight` (capacity + 1, dim) float32, the last row the default one, and, frozen so that
    workers share them, `keys` (capacity,) int64, the id of each row, and `counts` int32 with `min_count` > 1. A row is
    claimed by one compare-and-swap (`hogwild/kernels/row_claims.py`; needs the extra `sparse`). The table stays in the
    memory of the host.

    Raises UsageError for a wrong argument, and in `forward` for ids that are no int64 or are -2**63; ModelError for a
    saved table with more ids than `capacity`, or rows of another length."""

    def __init__(
        self, dim: int, capacity: int, *, min_count: int = 1, sparse: bool = True, std: float | None = None
    ) -> None:
        for name, value in (("dim", dim), ("capacity", capacity), ("min_count", min_count)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                words = f"NamedEmbedding: {name} must be a whole number >= 1, got {value!r}"
                raise UsageError(words, code="usage/bad-value")
        if not has_numba():
            raise UsageError("NamedEmbedding needs numba: install the extra `sparse`", code="usage/missing-extra")
        self.std, self.min_count = 1 / math.sqrt(dim) if std is None else std, min_count
        self._views: tuple[list[int], tuple[np.ndarray, ...]] | None = None
        self._is_full = False  # and that was said, in this process
        super().__init__(capacity + 1, dim, sparse=sparse)
        self.keys = nn.Parameter(torch.full((capacity,), FREE), requires_grad=False)
        counts = torch.zeros(4 * capacity, dtype=torch.int32) if min_count > 1 else None
        self.counts = None if counts is None else nn.Parameter(counts, requires_grad=False)

    def reset_parameters(self) -> None:
        """Draw all rows, also those that nobody has yet: a claim writes nothing but the key."""
        nn.init.normal_(self.weight, std=self.std)

    @property
    def capacity(self) -> int:
        return len(self.keys)

    @property
    def taken(self) -> int:
        """The number of ids that have a row of their own."""
        return int((self.keys != FREE).sum())

    def named(self) -> tuple[Tensor, Tensor]:
        """Return the ids that have a row, (n,) int64 in the order of the table, and their rows (n, dim), copied."""
        rows = (self.keys != FREE).nonzero().squeeze(1)
        return self.keys.detach()[rows], self.weight.detach()[rows]

    def rows_of(self, ids: Tensor, *, claim: bool = False) -> Tensor:
        """Return the row of each id, (…,) int64; `capacity`, the default row, for those without one. `claim`: unknown
        ids get one if they have been seen often enough and there is room."""
        find = _kernel()
        if ids.dtype != torch.int64:
            kind = str(ids.dtype).removeprefix("torch.")
            raise UsageError(f"NamedEmbedding: ids must be int64, got {kind}", code="usage/bad-value")
        if ids.device.type != "cpu" or self.keys.device.type != "cpu":
            where = ids.device if ids.device.type != "cpu" else self.keys.device
            words = f"NamedEmbedding: ids and the table stay in the memory of the host, got {where}"
            raise UsageError(words, code="usage/bad-value")
        flat = ids.contiguous().view(-1)
        rows = torch.empty_like(flat)
        weight, keys, counts = self._arrays()
        refused = find(keys, flat.numpy(), rows.numpy(), weight, counts, self.min_count, int(claim))
        if refused < 0:
            raise UsageError(f"NamedEmbedding: the id {FREE} is reserved", code="usage/bad-value")
        if refused and not self._is_full:
            self._is_full = True
            words = f"NamedEmbedding: all {self.capacity:,} rows are taken: further ids share the default row"
            warnings.warn(words, RuntimeWarning, stacklevel=3)
        return rows.view(ids.shape)

    def placed(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Place a saved table's `keys` (n,) int64 in a table of this capacity, empty before. Returns `keys` (capacity,)
        for this module, and the rows of each id and of the default row there and here. Raises ModelError for more ids
        than fit."""
        taken = (keys != FREE).nonzero().squeeze(1)
        own, here = torch.full((self.capacity,), FREE), torch.empty_like(taken)
        weight, _, _ = self._arrays()
        if _kernel()(own.numpy(), keys[taken].numpy(), here.numpy(), weight, NO_COUNTS, 1, 1):
            raise ModelError(
                f"{len(taken):,} saved ids do not fit into a capacity of {self.capacity:,}", code="model/init-mismatch"
            )
        ends = torch.tensor([len(keys)]), torch.tensor([self.capacity])
        return own, torch.cat([taken, ends[0]]), torch.cat([here, ends[1]])

    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Return weight, keys and counts as arrays, kept while the tensors stay where they are: 3 us for each."""
        tensors = self.weight, self.keys, self.keys if self.counts is None else self.counts
        places = [one.data_ptr() for one in tensors]
        if self._views is None or self._views[0] != places:
            weight, keys, counts = (one.detach().numpy() for one in tensors)
            self._views = places, (weight, keys, NO_COUNTS if self.counts is None else counts)
        return self._views[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None}

    def forward(self, input: Tensor) -> Tensor:
        rows = self.rows_of(input, claim=self.training)
        return functional.embedding(rows, self.weight, sparse=self.sparse)

    def extra_repr(self) -> str:
        more = f", min_count={self.min_count}" if self.min_count > 1 else ""
        return f"{self.embedding_dim}, capacity={self.capacity}{more}"

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *given: Any) -> None:
        """Load a table of any capacity: each id takes its row along, in the order of the saved table."""
        saved = {name: state_dict.get(prefix + name) for name in ("keys", "weight")}
        keys, weight = saved["keys"], saved["weight"]
        if keys is None or weight is None or keys.shape == self.keys.shape:
            super()._load_from_state_dict(state_dict, prefix, *given)
            return
        if weight.shape[1] != self.embedding_dim:
            raise ModelError(
                f"{prefix}weight: saved rows have {weight.shape[1]:,} numbers, not {self.embedding_dim:,}",
                code="model/init-mismatch",
            )
        try:
            own, there, here = self.placed(keys.cpu())
        except ModelError as error:
            raise ModelError(f"{prefix}keys: {error}", code=error.code) from None
        with torch.no_grad():
            self.keys.copy_(own)
            self.weight[here] = weight[there].to(self.weight)
            if self.counts is not None:
                self.counts.zero_()
