"""A data set of a job, wherever it lies: as tensors, in shared memory, packed, or in the slots of a ring."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hogwild.feeds.batch import Batch
from hogwild.feeds.packed import Packed
from hogwild.feeds.resident import ResidentData
from hogwild.job.stream_setup import Streamed
from hogwild.job.validation_ring import HeldRing
from hogwild.scheduling.batch_plan import OPEN, EpochPlan

_AT_ITS_END = "known at the end of the stream"
METRIC_SAMPLES = 64  # spread over the validation data, so that a metric sees more than one class


@dataclass(slots=True)
class Source:
    """One data set: its fields as tensors (N, …), inputs first and target last, and its batches. Of a stream only the
    first records are there (`streamed`), of validation data with batches of their own all of those (`held`)."""

    tensors: tuple[Tensor, ...]  # () of a packed or a streamed one
    plan: EpochPlan
    resident: ResidentData | None = None  # where they lie in shared memory already
    packed: Packed | None = None
    streamed: Streamed | None = None
    held: HeldRing | None = None

    @property
    def nbytes(self) -> int:
        """Of a stream none: its ring is counted where it is laid out."""
        if self.packed is not None:
            return self.packed.nbytes
        if self.held is not None:
            return self.held.ring.spec.nbytes
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def has_all(self) -> bool:
        """Every sample can be looked at."""
        return self.streamed is None and self.held is None

    @property
    def target(self) -> Any:
        """(N, …); of a stream that of its first records."""
        if self.streamed is not None:
            return self.head(METRIC_SAMPLES)[-1]
        if self.held is not None:
            return self.held.targets if self.held.targets is not None else self.held.head()[-1]
        return self.tensors[-1] if self.packed is None else self.packed.targets()

    @property
    def is_there_already(self) -> bool:
        """In the shared memory it will be trained from."""
        return self.resident is not None or self.packed is not None or self.held is not None

    def lay_contiguous(self) -> None:
        """Images are not to lie channels_last: what is in shared memory so is copied when the data is laid out."""
        self.resident = None
        self.streamed = None if self.streamed is None else self.streamed.contiguous()

    def pick(self, rows: Tensor) -> list[Any]:
        """These samples (n,) int64 as a batch: the inputs, and the target."""
        if self.packed is None:
            return [tensor[rows] for tensor in self.tensors]
        batch: Batch = self.packed.pick(rows.numpy())
        return [*(tensor.clone() for tensor in batch.inputs), batch.target.clone()]

    def head(self, samples: int) -> list[Any]:
        """The first ones, as a batch; of data in batches of its own no more than the first of those."""
        if self.streamed is not None:
            return self.streamed.head(samples)
        if self.held is not None:
            return self.held.head()
        return self.pick(torch.arange(min(samples, self.plan.samples)))

    def spread(self) -> list[Any]:
        """Some samples of all of it, as a batch."""
        if not self.has_all:
            return self.head(METRIC_SAMPLES)
        samples = self.plan.samples
        chosen = torch.linspace(0, samples - 1, min(METRIC_SAMPLES, samples), dtype=torch.float64)
        return self.pick(chosen.long().unique())

    def size(self) -> dict[str, Any]:
        """Of an epoch; of an iterable nobody knows before its end."""
        if self.plan.batches < OPEN:
            return {"samples": self.plan.samples, "batches": self.plan.batches}
        return {"samples": self.plan.samples or _AT_ITS_END, "batches": _AT_ITS_END}

    def fields(self) -> dict[str, str]:
        """What there is, in words."""
        if self.packed is not None:
            return {spec.name: f"{spec.shape} {spec.dtype}" for spec in self.packed.spec.arrays}
        if self.streamed is not None:
            leaves = self.streamed.form.leaves
            return {f"field {k}": f"streamed {str(leaf.dtype).removeprefix('torch.')}" for k, leaf in enumerate(leaves)}
        return {f"field {k}": f"{tuple(one.shape)} {_type(one)}" for k, one in enumerate(self.tensors)}

    def row_kinds(self, with_shapes: bool = True) -> list[str]:
        """Shape and type of a row of each field, to compare two data sets. Of what lies in a ring, the first of it."""
        leaves = self.tensors or tree_leaves(self.head(METRIC_SAMPLES))
        return [f"{tuple(leaf.shape[1:])} {_type(leaf)}" if with_shapes else _type(leaf) for leaf in leaves]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
