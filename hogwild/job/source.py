"""A data set of a job, wherever it is stored: as tensors, in shared memory, packed, or in the slots of a ring."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hogwild.data.rollout import Rollout
from hogwild.feeds.batch import Batch
from hogwild.feeds.packed import Packed
from hogwild.feeds.resident import ResidentData
from hogwild.job.stream_setup import HeldRing, Streamed
from hogwild.scheduling.batch_plan import OPEN, EpochPlan

_AT_ITS_END = "known at the end of the stream"
METRIC_SAMPLES = 64  # spread over the validation data, so that a metric sees more than one class


@dataclass(slots=True)
class Source:
    """One data set: its fields as tensors (N, …), inputs first and target last, and its batches. For a stream only the
    first records are here (`streamed`), for validation data in a ring all batches (`held`), for a `rollout` the
    position that was played before the start."""

    tensors: tuple[Tensor, ...]  # () for packed or streamed data
    plan: EpochPlan
    resident: ResidentData | None = None  # if they are already in shared memory
    packed: Packed | None = None
    streamed: Streamed | None = None
    held: HeldRing | None = None
    rollout: Rollout | None = None
    dataset: Any = None  # what the user gave, before a part of it was held out

    @property
    def nbytes(self) -> int:
        """Bytes of the data; 0 for a stream, whose ring is counted with its layout."""
        if self.packed is not None:
            return self.packed.nbytes
        if self.held is not None:
            return self.held.ring.spec.nbytes
        if self.rollout is not None:
            return 0
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def target(self) -> Any:
        """The targets (N, …); for a stream those of its first records."""
        if self.streamed is not None:
            return self.head(METRIC_SAMPLES)[-1]
        if self.held is not None:
            return self.held.targets if self.held.targets is not None else self.held.batch(0)[-1]
        return self.tensors[-1] if self.packed is None else self.packed.targets()

    @property
    def targets(self) -> Iterator[Any]:
        """All targets, in parts (n, …): of data in a ring those of each batch; for a stream of its first records."""
        many = self.held.plan.batches if self.held is not None and self.held.targets is None else 0
        return (self.held.batch(number)[-1] for number in range(many)) if self.held and many else iter((self.target,))

    @property
    def weights(self) -> Tensor:
        """The weights (N,) of weighted data."""
        return self.tensors[-2] if self.packed is None else self.packed.weights()

    @property
    def is_there_already(self) -> bool:
        """True if the data is in the shared memory it will be trained from."""
        return self.resident is not None or self.packed is not None or self.held is not None

    def lay_contiguous(self) -> None:
        """Undo the channels_last layout of images: data in shared memory is copied again when it is laid out."""
        self.resident = None
        self.streamed = None if self.streamed is None else self.streamed.contiguous()

    def pick(self, rows: Tensor) -> list[Any]:
        """Return the samples `rows` (n,) int64 as a batch: the inputs, and the target."""
        if self.packed is None:
            return [tensor[rows] for tensor in self.tensors]
        batch: Batch = self.packed.pick(rows.numpy())
        return [*(tensor.clone() for tensor in batch.inputs), batch.target.clone()]

    def head(self, samples: int) -> list[Any]:
        """Return the first samples as a batch; for data in a ring at most its first batch."""
        if self.streamed is not None:
            return self.streamed.head(samples)
        if self.held is not None:
            return self.held.batch(0)
        many = self.plan.samples if self.rollout is None else len(self.tensors[-1])
        return self.pick(torch.arange(min(samples, many)))

    def spread(self) -> list[Any]:
        """Return samples spread over all of it, as a batch."""
        if self.streamed is not None or self.held is not None or self.rollout is not None:
            return self.head(METRIC_SAMPLES)
        samples = self.plan.samples
        chosen = torch.linspace(0, samples - 1, min(METRIC_SAMPLES, samples), dtype=torch.float64)
        return self.pick(chosen.long().unique())

    def size(self) -> dict[str, Any]:
        """Return the size of an epoch; for an iterable it is unknown before the end."""
        if self.plan.batches < OPEN:
            return {"samples": self.plan.samples, "batches": self.plan.batches}
        return {"samples": self.plan.samples or _AT_ITS_END, "batches": _AT_ITS_END}

    def fields(self) -> dict[str, str]:
        """Return the fields as text."""
        if self.packed is not None:
            return {spec.name: f"{spec.shape} {spec.dtype}" for spec in self.packed.spec.arrays}
        if self.streamed is not None:
            leaves = self.streamed.form.leaves
            return {f"field {k}": f"streamed {str(leaf.dtype).removeprefix('torch.')}" for k, leaf in enumerate(leaves)}
        if self.rollout is not None:
            return {f"field {k}": f"played {type_name(one)}" for k, one in enumerate(self.tensors)}
        return {f"field {k}": f"{tuple(one.shape)} {type_name(one)}" for k, one in enumerate(self.tensors)}

    def row_kinds(self, with_shapes: bool = True) -> list[str]:
        """Return shape and type of a row of each field (in a ring, of its first batch), to compare data sets."""
        leaves = self.tensors or tree_leaves(self.head(METRIC_SAMPLES))
        return [f"{tuple(leaf.shape[1:])} {type_name(leaf)}" if with_shapes else type_name(leaf) for leaf in leaves]


def type_name(tensor: Tensor) -> str:
    """Return the type of the numbers, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")
