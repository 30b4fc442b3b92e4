"""Loading of a user's data set into memory: tensors are used as they are, anything else is read (`row_reader.py`).

has `.tensors` (TensorDataset, ours)      used as it is
any other                                 read by this process (`InTurn`) or, if that takes long, by several
                                          (`workers/loading/loading.py`)
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hogwild.errors import DataError
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.row_reader import RowSource, first_non_finite, not_finite
from hogwild.scheduling.batch_plan import mix

if TYPE_CHECKING:
    from hogwild.feeds.packed import Packed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A data set in memory: fields (N, …), inputs first, target last. `resident`: the tensors are views of this shared
    memory."""

    tensors: tuple[Tensor, ...]  # () for packed data
    resident: ResidentData | None = None
    packed: "Packed | None" = None

    @property
    def samples(self) -> int:
        return len(self.tensors[0]) if self.packed is None else self.packed.samples


class Reader(Protocol):
    """Loads a data set into memory, whole or, with `fraction`, as (train, held out), and tries the job's code, perhaps
    in other processes. `channels_last`: memory format of images that are read into shared memory. Raises DataError,
    MemoryShortError."""

    def read(self, dataset: Any, what: str, *, fraction: float | None, channels_last: bool) -> tuple[Held, ...]: ...

    def pack(self, parsing: Any) -> Any:
        """Return the `Parsed` file of a `hogwild.data.text_parsing.Parsing`."""

    def try_out(self, trial: Any) -> Any:
        """Return the `Findings` of a `hogwild.job.trial.Trial`. Raises ModelError if it ends its process."""


class InTurn:
    """Reads in this process, one row after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def read(self, dataset: Any, what: str, *, fraction: float | None, channels_last: bool) -> tuple[Held, ...]:
        return divided(materialise(dataset, what, self._seed), fraction, self._seed)

    def pack(self, parsing: Any) -> Any:
        """Parse in this process, without a cache. Logs which records are left out."""
        parsed = parsing.parse(lambda done, size: None)
        for note in parsed.notes:
            log.warning("%s", note)
        return parsed

    def try_out(self, trial: Any) -> Any:
        return trial.run()


def materialise(dataset: Dataset, what: str, seed: int = 0) -> tuple[Tensor, ...]:
    """Return all samples of a map-style data set as tensors (N, …), inputs first, target last.

    A data set that has `tensors` (torch's `TensorDataset`, ours) is used as it is; any other is read in this process.
    Raises DataError naming `what`, the item and the rule.
    """
    if (ready := ready_tensors(dataset, what)) is not None:
        return ready
    rows = RowSource.of(dataset, what, seed)
    columns = rows.columns()
    rows.read_into(columns)
    return columns


def divided(tensors: tuple[Tensor, ...], fraction: float | None, seed: int) -> tuple[Held, ...]:
    """Return (all samples,), or (train, held out) if `fraction` is given."""
    if fraction is None:
        return (Held(tensors),)
    return tuple(Held(tuple(t[part] for t in tensors)) for part in division(len(tensors[0]), fraction, seed))


class Part(Subset[Any]):
    """The training or the held-out part under `data.val.fraction`; `indices` are item numbers in the whole data set."""


def number_of(dataset: Any, item: int) -> int:
    """Return the number of an item of `dataset` in the data set that the user gave."""
    return int(dataset.indices[item]) if isinstance(dataset, Part) else item


def place_of(dataset: Any, number: int) -> str:
    """Return ` (FILE: line N)` of an item that `number_of` counts, if the user's data set knows it; else ""."""
    known = getattr(dataset.dataset if isinstance(dataset, Part) else dataset, "place_of", None)
    return f" ({known(number)})" if callable(known) else ""


def division(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split rows by seed into (train, held out), (n,) int64 each. Raises DataError if one part is empty."""
    held = round(count * fraction)
    require_both(held, count, fraction)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, -2)))
    return order[held:], order[:held]


def require_both(held: int, count: int, fraction: float) -> None:
    """Raise DataError unless the training and the held-out part have a sample each."""
    if not 0 < held < count:
        raise DataError(
            f"data.val.fraction {fraction} of {count} samples leaves {held} to evaluate; both parts need at least one",
            code="data/split",
        )


# ---- what lies in memory already ------------------------------------------------------------------------------------


def ready_tensors(dataset: Any, what: str) -> tuple[Tensor, ...] | None:
    """Return the checked tensors of a data set that has them; None for one that must be read. Raises DataError."""
    if isinstance(dataset, IterableDataset):
        raise DataError(f"{what}: an IterableDataset cannot be resident; set data.feed: stream", code="data/stream")
    tensors = _ready_tensors(dataset)
    if tensors is not None:
        _check_fields(tensors, what)
    return tensors


def _ready_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """Return the tensors behind `dataset[i]`; None if a user's class defines its own `__getitem__`."""
    read = getattr(type(dataset), "__getitem__", None)
    if read is TensorDataset.__getitem__:
        return tuple(tensor.detach() for tensor in dataset.tensors)
    if read is not Subset.__getitem__ or (whole := _ready_tensors(dataset.dataset)) is None:
        return None
    if any(tensor.layout != torch.strided for tensor in whole):
        return None  # cannot be indexed like this; reading the items reports the error
    chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
    try:
        return tuple(tensor[chosen] for tensor in whole)
    except IndexError:
        return None  # reading them one by one reports which index is wrong


def _check_fields(tensors: Sequence[Tensor], what: str) -> None:
    if len(tensors) < 2:
        raise DataError(f"{what}: samples have only one field; they need an input and a target", code="data/fields")
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise DataError(
            f"{what}: the fields have different numbers of samples: {[len(t) for t in tensors]}", code="data/fields"
        )
    if lengths == {0}:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on", code="data/empty")
    for position, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            words = f"field {position} is {tensor.layout}; only dense tensors can be resident"
            raise DataError(f"{what}: {words}", code="data/not-dense")
        if (row := first_non_finite(tensor)) is not None:
            raise not_finite(what, row, position, len(tensors))
