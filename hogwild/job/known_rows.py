"""Rows of named things that a run knows: who has what, or the links of a graph. They are those of its own data and of
all runs that it continued, so that nobody is recommended what he has, with or without the data.

    the run's data ── rows ──┐                         RUN/known.npz ── link ──► RUN/checkpoints/update-…/known.npz
    init_from/known.npz ── by name ──► each row once ──┘

    first      (names + 1,) int64            the rows of the name n in the first column begin at first[n]
    others     (N, k - 1) uint16 or int32    numbers in the further columns
    held_out   bits                          rows of data.val that no run was trained on
    about      JSON                          kinds of the columns, digests of names.json, names that it does not have"""

import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.errors import ModelError, RunError
from hogwild.feeds.packed import Packed, columns_of, kinds_of
from hogwild.job.identity import identity_of
from hogwild.job.source import Source
from hogwild.storage.run_directory import KNOWN

SMALL = 1 << 16  # names that uint16 can number
LARGEST = 1 << 62  # a row's key, and one more bit
MOST = 1 << 27  # rows of a run: their order takes some 30 bytes each, for a moment


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Each row once, in order: `rows` (N, k) int32 are numbers of `names`, by the kind of each column; `held_out` (N,)
    bool: never trained on. The first `sizes` names of a kind are the model's. `lacking`: a run that was continued and
    has not recorded its rows."""

    kinds: tuple[str, ...]
    names: Mapping[str, Sequence[Any]]
    sizes: Mapping[str, int]
    rows: np.ndarray
    held_out: np.ndarray
    lacking: str = ""

    @classmethod
    def of(
        cls,
        kinds: Sequence[str],
        names: Mapping[str, Sequence[Any]],
        rows: np.ndarray,
        held_out: np.ndarray | None = None,
        lacking: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> "NamedRows":
        """Return the rows (N, k), in any order and perhaps repeated; a repeated one is held out if it is everywhere."""
        own = {kind: names[kind] for kind in dict.fromkeys(kinds)}
        widths = [max(1, len(own[kind])) for kind in kinds]
        if len(rows) and (rows.min() < 0 or (rows.max(axis=0) >= widths).any()):
            raise ValueError("a number that no name has")
        every = None
        if math.prod(widths) < LARGEST:
            keys = rows[:, 0].astype(np.int64)
            for width, column in zip(widths[1:], rows.T[1:], strict=True):
                keys *= width
                keys += column
        else:
            every, keys = np.unique(rows, axis=0, return_inverse=True)
            keys = keys.reshape(-1).astype(np.int64)
        keys *= 2
        if held_out is not None:
            keys += held_out
        keys.sort()
        is_first = np.ones(len(keys), np.bool_)
        np.greater(keys[1:] ^ keys[:-1], 1, out=is_first[1:])  # they differ in more than the last bit
        keys = keys[is_first]
        held = (keys & 1).astype(np.bool_)
        keys >>= 1
        kept = _unravelled(keys, widths) if every is None else every[keys].astype(np.int32)
        given = {kind: len(values) for kind, values in own.items()} if sizes is None else sizes
        return cls(tuple(kinds), own, dict(given), kept, held, lacking)

    @classmethod
    def of_data(cls, train: Source, val: Source | None, names: Mapping[str, Any] | None) -> "NamedRows | None":
        """Return the rows of a job's data; None if they have no names, or are more than MOST. `names`: as in
        names.json."""
        parts = [*_parts(train), *(_parts(val) if val is not None else ())]
        if train.packed is None or not parts or names is None or sum(len(rows) for _, rows in parts) > MOST:
            return None
        is_held = np.repeat([part is not train for part, _ in parts], [len(rows) for _, rows in parts])
        rows = np.concatenate([rows for _, rows in parts])
        del parts  # as large as `rows`
        return cls.of(kinds_of(train.packed), names["names"], rows, is_held)

    def joined(self, other: "NamedRows") -> "NamedRows":
        """Return these rows and those of `other`, by name; names that are not known here get numbers behind the
        others."""
        names, moved = {kind: [*values] for kind, values in self.names.items()}, other.rows.copy()
        for kind, known in names.items():
            columns = [place for place, one in enumerate(self.kinds) if one == kind]
            used = np.unique(other.rows[:, columns])
            wanted = [other.names[kind][number] for number in used.tolist()]
            found = IdRows(known).rows(wanted)
            lacking = np.flatnonzero(found < 0)
            found[lacking] = np.arange(len(known), len(known) + len(lacking))
            known += [wanted[place] for place in lacking.tolist()]
            table = np.zeros(int(used.max(initial=0)) + 1, np.int32)
            table[used] = found
            moved[:, columns] = table[other.rows[:, columns]]
        rows, held = np.concatenate([self.rows, moved]), np.concatenate([self.held_out, other.held_out])
        return NamedRows.of(self.kinds, names, rows, held, self.lacking or other.lacking, self.sizes)

    def trained(self) -> "NamedRows":
        """Return the rows that a run was trained on."""
        return replace(self, rows=self.rows[~self.held_out], held_out=self.held_out[~self.held_out])

    # ---- the file

    def content(self) -> bytes:
        """Return the content of the file."""
        first = np.zeros(len(self.names[self.kinds[0]]) + 1, np.int64)
        np.cumsum(np.bincount(self.rows[:, 0], minlength=len(first) - 1), out=first[1:])
        own = {kind: [*values][: self.sizes[kind]] for kind, values in self.names.items()}
        about = {
            "kinds": self.kinds,
            "digests": identity_of({"names": own})["names"],
            "more": {kind: [*values][self.sizes[kind] :] for kind, values in self.names.items()},
            "lacking": self.lacking,
        }
        others = self.rows[:, 1:]
        arrays = {
            "first": first,
            "others": others.astype(np.uint16 if others.max(initial=0) < SMALL else np.int32),
            "held_out": np.packbits(self.held_out),
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        }
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def read(cls, folder: Path, names: Mapping[str, Any]) -> "NamedRows | None":
        """Read the file of a run, of a checkpoint or beside a file of weights, or else of the checkpoint's run; None
        without one. `names`: as in its names.json. Raises RunError, and ModelError if it has other names."""
        file = next((one for one in (folder / KNOWN, folder.parent.parent / KNOWN) if one.exists()), None)
        if file is None:
            return None
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as found:
                about = json.loads(found["about"].tobytes())
                first, others, bits = found["first"], found["others"].astype(np.int32), found["held_out"]
            own = {kind: names["names"].get(kind, []) for kind in dict.fromkeys(about["kinds"])}
            every = {kind: [*values, *about["more"][kind]] for kind, values in own.items()}
            column = np.repeat(np.arange(len(first) - 1, dtype=np.int32), np.diff(first))
            rows = np.concatenate([column[:, None], others], 1)
            held = np.unpackbits(bits, count=len(rows)).astype(np.bool_)
            if others.min(initial=0) < 0:
                raise ValueError("it has a negative number")
            sizes = {kind: len(values) for kind, values in own.items()}
            is_ours = identity_of({"names": own})["names"] == about["digests"]
            kept = cls.of(about["kinds"], every, rows, held, str(about["lacking"]), sizes) if is_ours else None
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(f"{file}: cannot be read: {error}", code="run/unreadable") from error
        if kept is None:
            raise ModelError(f"{file}: does not belong to the names beside it: it has others", code="model/init-names")
        return kept


def _unravelled(keys: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Return the rows (N, k) int32 of these keys, which are used up."""
    rows = np.empty((len(keys), len(widths)), np.int32)
    for place in reversed(range(len(widths))):
        np.remainder(keys, widths[place], out=rows[:, place], casting="unsafe")
        keys //= widths[place]
    return rows


def _parts(source: Source) -> Iterator[tuple[Source, np.ndarray]]:
    """Yield the rows (n, k) of a source's data, and those that a ranking loss has left out."""
    if source.packed is not None and kinds_of(source.packed):
        yield source, rows_of_names(source.packed)
        if source.left_out is not None:
            yield source, source.left_out


def rows_of_names(packed: Packed) -> np.ndarray:
    """Return the numbers (N, k) of the names of each row."""
    columns = columns_of(packed) or []
    return np.stack([rows for _, rows in columns], 1)
