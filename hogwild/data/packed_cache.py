"""Packed data in the cache beside the runs: written once, memory-mapped from then on.

    FOLDER/.cache/KEY/data.bin    the arrays, as in memory, aligned to cache lines; then their description, and names

A job maps the file: nothing is copied, and all processes of all jobs share its pages, which the operating system reads
on demand; so it may be larger than memory. The mapping is writable, because torch maps shared memory in no other way;
nobody writes to it. Checksums are verified when it is mapped, unless it does not fit into memory. Index bounds are
always checked: a compiled kernel would read out of bounds."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hogwild import host
from hogwild.data.cache import DATA, CachedField, DatasetCache, Entry
from hogwild.data.text_parsing import Parsed, names_as_bytes
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.shared_memory.region import ALIGNMENT, Region, aligned

LOOK = 1 << 24  # numbers that are looked at in one go
# Upper bound of each id column: (array, column) -> name of the size; a column of None is the whole array.
BOUNDS: Mapping[tuple[str, int | None], str] = {
    ("indices", None): "features",
    ("user", None): "users",
    ("item", None): "items",
    ("triple", 0): "entities",
    ("triple", 1): "relations",
    ("triple", 2): "entities",
    ("tokens", None): "words",
}
STARTS = {"indptr": "indices", "starts": "tokens"}  # arrays of start offsets -> the array they point into


def load(cache: DatasetCache, key: str) -> Parsed | None:
    """Return the data stored under `key`, mapped, or None. Damaged data is removed, with a message."""
    entry = cache.load(key)
    if entry is None:
        return None
    try:
        descriptor = os.open(entry.folder / DATA, os.O_RDWR | os.O_CLOEXEC)
        region = Region.attach(descriptor, sum(spec.nbytes for spec in entry.specs))
    except OSError as error:
        cache.say(f"the cache {entry.folder} cannot be mapped ({error.strerror or error}); the data is parsed again")
        return None
    fits = region.nbytes <= host.available_memory().bytes
    host.read_ahead(region.descriptor, all_of_it=fits)
    whole = region.array("u1", (region.nbytes,))
    if fits and not entry.matches(memoryview(whole.data)):
        return None
    try:
        parsed = _described(region, entry)
        problem = outside(parsed.packed)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        cache.reject(entry.folder, problem)
        return None
    return parsed


def store(cache: DatasetCache, key: str, parsed: Parsed) -> bool:
    """Store the data, with its names. Return False, with a message, if that failed."""
    specs: list[CachedField] = []
    buffers: list[Any] = []
    for array in parsed.packed.arrays().values():
        specs.append(CachedField(array.dtype.name, array.shape))
        buffers.append(np.ascontiguousarray(array))
        padding = aligned(array.nbytes) - array.nbytes
        specs.append(CachedField("uint8", (padding,)))
        buffers.append(bytearray(padding))
    # The length of the head in 8 bytes, the head as JSON, and the names.
    spec, names = parsed.packed.spec, names_as_bytes(parsed.packed.names)
    head = {
        "form": spec.form,
        "samples": spec.samples,
        "arrays": [[array.name, array.dtype, list(array.shape)] for array in spec.arrays],
        "sizes": dict(spec.sizes),
        "left_out": dict(parsed.left_out),
        "notes": list(parsed.notes),
        "names": [[name, len(content)] for name, content in names],
    }
    written = json.dumps(head).encode()
    description = len(written).to_bytes(8, "little") + written + b"".join(content for _, content in names)
    description += bytes(-len(description) % ALIGNMENT)
    return cache.store(key, [*specs, CachedField("uint8", (len(description),))], [*buffers, bytearray(description)])


def outside(packed: Packed) -> str:
    """Return why a kernel that trusts the arrays would read out of bounds; "" if it would not."""
    arrays, sizes = packed.arrays(), packed.spec.sizes
    for name, what in STARTS.items():
        if name in arrays and (problem := _not_rising(name, arrays[name], len(arrays[what]))):
            return problem
    for (name, column), size in BOUNDS.items():
        if name not in arrays or not arrays[name].size:
            continue
        values = arrays[name] if column is None else arrays[name][:, column]
        if size not in sizes:
            return f"there are {name}, but not how many {size}"
        low, high = _extremes(values)
        if low < 0 or high >= sizes[size]:
            return f"{name} holds {low if low < 0 else high}; there are {sizes[size]:,} {size}"
    samples, form = packed.samples, packed.spec.form
    for name, array in arrays.items():
        rows = samples + 1 if name == "indptr" else samples
        is_by_sample = form == "table" or (form == "csr" and name in ("indptr", "weight", "target"))
        if is_by_sample and len(array) != rows:
            return f"{name} has {len(array):,} rows, there are {samples:,} samples"
    if form == "csr" and len(arrays["values"]) != len(arrays["indices"]):
        return "there are not as many values as indices"
    target, classes = arrays.get("target"), sizes.get("classes", 0)
    if target is not None and target.dtype.kind == "i" and len(target):
        low, high = _extremes(target)
        if low < 0 or high >= classes:
            return f"target holds {low if low < 0 else high}; there are {classes:,} classes"
    return ""


def _not_rising(name: str, starts: np.ndarray, end: int) -> str:
    if not len(starts) or starts[0] != 0 or starts[-1] != end:
        return f"{name} does not go from 0 to {end:,}"
    for at in range(0, len(starts) - 1, LOOK):
        part = starts[at : at + LOOK + 1]
        if (part[1:] < part[:-1]).any():
            return f"{name} falls behind {at:,}"
    return ""


def _extremes(values: np.ndarray) -> tuple[int, int]:
    parts = [values[at : at + LOOK] for at in range(0, len(values), LOOK)]
    return min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)


def _described(region: Region, entry: Entry) -> Parsed:
    """Read a description back. Raises ValueError, KeyError, TypeError for an invalid one."""
    size = entry.specs[-1].nbytes
    content = region.array("u1", (size,), region.nbytes - size).tobytes()
    length = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:length])
    shapes = {name: (dtype, tuple(shape)) for name, dtype, shape in head["arrays"]}
    spec = PackedSpec.laid_out(head["form"], head["samples"], shapes, head["sizes"])
    if spec.nbytes + size > region.nbytes:
        raise ValueError("the arrays are longer than the file")
    names, at = {}, length
    for name, nbytes in head["names"]:
        key, _, kind = name.rpartition(":")
        part = content[at : at + nbytes]
        names[key] = np.frombuffer(part, np.int64) if kind == "int64" else json.loads(part)
        at += nbytes
    return Parsed(Packed(region, spec, names), head["left_out"], tuple(head["notes"]))
