"""Identity of a job's data: its samples, and the names that rows of a model stand for (`row_names.py`). A resume with
other data is refused.

    {"names": {"users": digest}, "data.train": {"samples": "1,000", "rating": "float32 () digest"}}  in every checkpoint

For packed data, ready tensors and our files all content is compared; for a data set that is read item by item only
integers (ids, labels), because the rest may be random; for a stream the number of its records."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hogwild import host
from hogwild.errors import DataError, ModelError, RunError
from hogwild.job.source import Source
from hogwild.scheduling.batch_plan import StreamPlan
from hogwild.storage.run_directory import NAMES

BLOCK = 1 << 20  # bytes hashed at once
LIMIT = 256 * BLOCK  # of a field; for a larger one, blocks spread over all of it: 0.2 s
WHOLE_NUMBERS = (torch.int16, torch.int32, torch.int64)

Identity = dict[str, dict[str, str]]
Answer = TypeVar("Answer")


def identity_of(names: Mapping[str, Any] | None, **data: tuple[Source | None, Any]) -> Identity:
    """Return the identity. `names` as from `packed_data.names_of`; `data`: the data in memory, and its data set."""
    written = {kind: json.dumps([*values]).encode() for kind, values in (names or NO_NAMES)["names"].items()}
    found = {"names": {kind: hashlib.sha256(content).hexdigest()[:16] for kind, content in written.items()}}
    return found | {f"data.{what}": dict(_fields(*given)) for what, given in data.items() if given[0] is not None}


def identified(names: Mapping[str, Any] | None, **data: tuple[Source | None, Any]) -> Future[Identity]:
    """Return the identity as a future of a thread: it is wanted with the first checkpoint, and a gigabyte takes a
    second. The sources may lose their tensors meanwhile."""
    given = {what: (copy(source), dataset) for what, (source, dataset) in data.items()}
    return in_thread(identity_of, names, **given)


def in_thread(work: Callable[..., Answer], /, *arguments: Any, **more: Any) -> Future[Answer]:
    """Return what `work` returns as a future of a thread of its own."""
    thread = ThreadPoolExecutor(1, work.__name__, initializer=host.leave_signals_to_main)
    found = thread.submit(work, *arguments, **more)
    thread.shutdown(wait=False)
    return found


def _fields(source: Any, dataset: Any) -> Iterator[tuple[str, str]]:
    fields = {f"field {number}": tensor for number, tensor in enumerate(source.tensors)}
    if source.packed is not None:
        fields = {name: torch.from_numpy(array) for name, array in source.packed.arrays().items()}
    if source.rollout is not None:
        fields = {}  # they follow from the model
    if not isinstance(source.plan, StreamPlan):
        yield "samples", f"{source.plan.samples:,}"
    read = getattr(type(dataset), "__getitem__", None)
    is_whole = source.packed is not None or read is TensorDataset.__getitem__ or hasattr(dataset, "fingerprint")
    for name, field in fields.items():
        content = _digest(field) if is_whole or field.dtype in WHOLE_NUMBERS else ""
        yield name, f"{str(field.dtype).removeprefix('torch.')} {(*field.shape[1:],)} {content}".rstrip()


def _digest(field: Tensor) -> str:
    digest, rows = hashlib.sha256(), max(1, BLOCK * len(field) // max(1, field.nbytes))
    for start in range(0, len(field), rows * (1 + field.nbytes // LIMIT)):
        digest.update(field[start : start + rows].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


NO_NAMES: Mapping[str, Any] = {"names": {}, "sizes": {}, "columns": None, "unseen": {}, "padded": ()}


def read_names(folder: Path) -> Mapping[str, Any]:
    """Read the names.json in the folder of a run, of a checkpoint or of a file of weights, or else of the checkpoint's
    run: `names`, `sizes`, `columns`, `unseen` (`row_names.KnownNames`), `padded`, fields of a sample. Empty if there is
    no file. Raises RunError."""
    file = next((one for one in (folder / NAMES, folder.parent.parent / NAMES) if one.exists()), folder / NAMES)
    try:
        found = json.loads(file.read_text("utf-8"))
        parts = {"names": dict(found["names"]), "sizes": dict(found["sizes"]), "columns": found.get("columns")}
        return parts | {"unseen": dict(found.get("unseen") or {}), "padded": tuple(map(int, found.get("padded") or ()))}
    except FileNotFoundError:
        return NO_NAMES
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: cannot be read: {error}", code="run/unreadable") from error


def names_beside(folder: Path, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the names that belong to the checkpoint `folder` with this `state`, as `read_names`. Raises ModelError if
    they are those of other rows."""
    names, recorded = read_names(folder), state.get("data", {}).get("names")
    if names is not NO_NAMES and recorded is not None and identity_of(names)["names"] != recorded:
        raise ModelError(f"{folder}: its {NAMES} does not belong to it: it has other names", code="model/init-names")
    return names


def require_same(state: Mapping[str, Any], run: Path, names: Mapping[str, Any] | None, now: Identity) -> bool:
    """Compare `now` with the data of the checkpoint `state` of `run`; if the checkpoint does not record them (returns
    False), with the names in the run's names.json. Raises DataError."""
    was: Identity = state.get("data") or identity_of(read_names(run))
    changed = []
    for what in (key for key in was if key in now):
        for key, old in was[what].items():
            new = now[what].get(key, "none" if what == "names" else old)  # one feed may know less than the other
            if new != old:
                words = _first_renamed(run, names or NO_NAMES, key) if what == "names" else ""
                changed.append(f"{what}: {key}: {words}was {old}, now {new}")
    if changed:
        raise DataError(
            "the data has changed since this run was trained:\n  " + "\n  ".join(changed) + "\nRestore the data, or "
            f"start a new run that goes on with this run's model, rows matched by name: --continue {run}",
            code="data/changed",
        )
    return "data" in state


def _first_renamed(run: Path, names: Mapping[str, Any], kind: str) -> str:
    old, new = (found["names"].get(kind, []) for found in (read_names(run), names))
    rows = [row for row, pair in enumerate(zip_longest(old, new)) if pair[0] != pair[1]]
    if not rows:
        return ""
    was, now = (repr(side[rows[0]]) if rows[0] < len(side) else "nothing" for side in (old, new))
    return f"row {rows[0]} was {was}, now {now} ({len(rows):,} of {len(old):,} differ, now {len(new):,}); digest "
