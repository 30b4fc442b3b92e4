"""The choice between streamed and resident data, and the split into training data and held-out data.

feed: auto     resident if the data set has a length, equal records, and fits into half of the free memory
feed: stream   streamed"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from hogwild import host
from hogwild.config.load import Job
from hogwild.errors import DataError
from hogwild.feeds.collate import NUMBERS
from hogwild.feeds.materialise import Part, division, ready_tensors
from hogwild.feeds.row_reader import RowSource
from hogwild.formatting import size

RESIDENT_SHARE = 0.5  # of the free memory: a larger data set is streamed (feed: auto)
LEAVES = (Tensor, np.ndarray, *NUMBERS)


def is_iterable(dataset: Any) -> bool:
    """Return whether it is read from its beginning to its end: an IterableDataset, an iterator, or an object with
    `__iter__` but without `dataset[i]`."""
    kind = type(dataset)
    is_plain = hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")
    return is_plain or isinstance(dataset, IterableDataset | Iterator)


def why_streamed(job: Job, dataset: Any, what: str) -> tuple[str, str]:
    """Return (why it is streamed, or "" if it is resident; a note for the log). Raises DataError for neither."""
    data = job.data
    if data.lanes is not None:
        return "", ""
    if data.feed == "resident":
        needs = next((name for name in ("collate", "padding") if getattr(data, name) is not None), "")
        if needs:
            raise DataError(f"data.{needs} needs data.feed: stream, but the job sets resident", code="data/stream-only")
        return "", ""
    if data.feed == "stream":
        return "set by data.feed", ""
    if is_iterable(dataset):
        return f"{type(dataset).__name__} can only be read from start to end", ""
    for name in ("collate", "padding"):
        if getattr(data, name) is not None:
            return f"data.{name} is set", ""
    if ready_tensors(dataset, what) is not None:
        return "", ""
    try:
        rows = RowSource.of(dataset, what, job.seed)
    except DataError as error:
        if error.code == "data/bad-item" and _is_nested(dataset):
            return f"the inputs of {type(dataset).__name__} are nested", ""
        raise
    needed, memory = rows.count * rows.row_bytes, host.available_memory()
    if needed > RESIDENT_SHARE * memory.bytes:
        return f"it needs {size(needed)}, more than half of the free memory ({size(memory.bytes)})", ""
    return "", f"{what}: resident: {size(needed)} loaded into memory ({size(memory.bytes)} free; data.feed: auto)"


def _is_nested(dataset: Any) -> bool:
    """Return whether its first record (read before) is a tuple that contains a tuple, list or dict of tensors."""
    with torch.random.fork_rng(devices=[]):
        record = dataset[0]
    if not isinstance(record, tuple | list) or len(record) < 2:
        return False
    leaves = tree_leaves(record)
    is_nested = any(isinstance(entry, tuple | list | dict) for entry in record)
    return is_nested and all(isinstance(leaf, LEAVES) for leaf in leaves)


def split(dataset: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Return (training data, held-out data) of a map-style data set. Raises DataError for an iterable."""
    if is_iterable(dataset):
        raise DataError(
            f"data.val.fraction: {type(dataset).__name__} can only be read from start to end; give data.val a data set",
            code="data/split",
        )
    trained, held = division(len(dataset), fraction, seed)
    return Part(dataset, trained.tolist()), Part(dataset, held.tolist())
