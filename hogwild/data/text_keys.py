"""Keys of the texts in a column, many at once, and the names behind them in a file.

    different texts of a block ──► compiled: key and check of each ──► those not seen before: RUN/names.jsonl
                                       '── perhaps another spelling, empty, no numba ──► the rule, text by text

A name is known by its key, and told from another one of that key by its check.

Names of ids without a row leave the file, once they may be half of it. Only its writer knows what it has read, and only
the supervisor which ids have a row:

    writer      all its rows so far are in the ring, or trained ──► request `ids`
    supervisor  the next checkpoint's pause: a copy of the ring ──► keys in it and in all checkpoints on disk: ID.ids
    writer      keeps these, and what it has read since the request; the file is replaced whole

So no name is lost of an id that has a row, that may get one, or that a resume or a rollback brings back."""

import contextlib
import json
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.csv.parse import MISSING_CODE, BreaksRule, Codes, Rule, Words
from hogwild.data.ids import digest_of, key_of_text
from hogwild.errors import RunDirError, RunError
from hogwild.feeds.waiting import pause
from hogwild.kernels import signatures
from hogwild.storage.files import sync_folder, temporary
from hogwild.storage.run_directory import ALL_TEXTS, TEXTS
from hogwild.storage.run_files import answer_file, write_request

NAMES = TEXTS  # in the run directory: [key, name] per line
UNSURE = -(2**63)  # as `kernels/text_keys.py` says
FEWEST_CELLS = 1 << 10
FEWEST_NAMES = 1000  # so many stay without a question
PART = 1 << 20  # bytes of a file of names that are read at once
quoted = json.encoder.encode_basestring  # as `json.dumps` does without ensure_ascii, twenty times as fast
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keys(Codes):
    """The key of each text; `column`: of a feature; `size` > 0: number of the keys. `texts`: where new ones are
    kept."""

    column: str = ""
    is_feature: bool = False
    texts: "NameFile | None" = None

    def code(self, text: str) -> int | None:
        if self.is_feature:
            text = f"{self.column}={text}" if text else self.column
        elif not text:
            return MISSING_CODE
        if self.size:
            return digest_of(text) % self.size
        key = key_of_text(text)
        if self.texts is not None and key < 0:
            self.texts.note(key, text)
        return key

    def of_words(
        self, words: Words, rule: Rule, dtype: Any, *, is_utf8: bool
    ) -> tuple[np.ndarray, dict[int, BreaksRule]]:
        texts, prefix = words.texts, f"{self.column}=" if self.is_feature else ""
        count = len(texts)
        found, checks = np.full(count + 1, UNSURE), np.zeros(count, np.int64)
        if (kernels := _kernels()) is not None and (content := _content(texts)) is not None:
            lead = np.frombuffer(prefix.encode(), np.uint8)
            kernels.keys_of(*content, lead, self.size, is_utf8, found[:count], checks)
        if self.texts is not None and not self.size:
            named = np.flatnonzero((found[:count] < 0) & (found[:count] != UNSURE))
            self.texts.note_all(found[named], checks[named], lambda at: f"{prefix}{texts[int(named[at])]}")
        unsure, broken = np.flatnonzero(found == UNSURE), dict[int, BreaksRule]()
        if not (words.rows == count).any():
            unsure, found[count] = unsure[:-1], MISSING_CODE
        for number in unsure.tolist():
            try:
                found[number] = rule(str(texts[number]).strip() if number < count else "")
            except BreaksRule as why:
                broken[number] = why
        return found, broken


@cache
def _kernels() -> Any:
    """Return the compiled keys, None without numba."""
    if not signatures.has_numba():
        return None
    from hogwild.kernels import kernel_cache
    from hogwild.kernels import text_keys as kernels

    log.debug("text_keys: %s", kernel_cache.make_ready(signatures.text_keys()))
    return kernels


def _content(texts: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the bytes of an arrow array of strings or of a list of texts, and where each ends, behind a beginning;
    None if one is not a text."""
    if isinstance(texts, list):
        try:
            parts = [text.encode() for text in texts]
        except UnicodeEncodeError:
            return None
        ends = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([*map(len, parts)], out=ends[1:])
        return _read_only(b"".join(parts), np.uint8), _read_only(ends, np.int32)
    _, ends_of_all, content = texts.buffers()
    begin = texts.offset
    ends = _read_only(ends_of_all or bytes(4), np.int32)[begin : begin + len(texts) + 1]
    return _read_only(content or b"", np.uint8), ends


def _read_only(content: Any, dtype: Any) -> np.ndarray:
    """Return a view of the type for which the kernel is compiled."""
    found = np.frombuffer(content, dtype)
    found.flags.writeable = False
    return found


# ---- names ----------------------------------------------------------------------------------------------------------


class KnownKeys:
    """A check for each negative key, and the block in which it was read last, in memory: at most 96 bytes per key."""

    def __init__(self) -> None:
        self._count = 0
        self._keys, self._checks, self._blocks = np.zeros((3, FEWEST_CELLS), np.int64)  # key 0: a free cell

    def __len__(self) -> int:
        return self._count

    def find(self, keys: np.ndarray, block: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) bool: whether it is there; and (n,) int64: its check. `block`: the one that is being read."""
        cells = self._cells(keys)
        is_there = self._keys[cells] == keys
        if block:
            self._blocks[cells[is_there]] = block
        return is_there, self._checks[cells]

    def add(self, keys: np.ndarray, checks: np.ndarray, blocks: np.ndarray | int = 0) -> None:
        """Add keys that are not there, each once."""
        rows = np.stack([keys, checks, np.broadcast_to(blocks, keys.shape)])
        self._count += len(keys)
        if 2 * self._count > len(self._keys):
            before = np.stack([self._keys, self._checks, self._blocks])[:, self._keys != 0]
            rows = np.concatenate([before, rows], axis=1)
            self._keys, self._checks, self._blocks = np.zeros((3, 1 << (2 * self._count).bit_length()), np.int64)
        while rows.shape[1]:
            cells = self._cells(rows[0])
            self._keys[cells] = rows[0]  # of those that want one cell, one gets it
            is_in = self._keys[cells] == rows[0]
            self._checks[cells[is_in]], self._blocks[cells[is_in]] = rows[1:, is_in]
            rows = rows[:, ~is_in]

    def those(self, wanted: np.ndarray, block: int) -> "KnownKeys":
        """Return a copy with those among `wanted` (n,), and those that were read in `block` or later."""
        stays = (self._keys != 0) & ((self._blocks >= block) | np.isin(self._keys, wanted))
        found = KnownKeys()
        found.add(self._keys[stays], self._checks[stays], self._blocks[stays])
        return found

    def _cells(self, keys: np.ndarray) -> np.ndarray:
        """Return the cell of each key, or the free one that it would get."""
        last = len(self._keys) - 1
        cells = keys & last  # keys are hashes
        left = np.arange(len(keys))
        while len(left):
            found = self._keys[cells[left]]
            left = left[(found != 0) & (found != keys[left])]
            cells[left] = (cells[left] + 1) & last
        return cells


class NameFile:
    """The names behind negative keys, in a file that only one process writes: `[key, "name"]` per line, once for each,
    before a row with it is given away. A half line at its end is of a killed process: it is cut off."""

    def __init__(self, path: Path) -> None:
        """Read what is there, and note it in memory."""
        self._path = path
        self._known = KnownKeys()
        self._noted = list[tuple[int, str]]()
        self._new = list[str]()
        self._told = set[str]()
        self._block = 2  # the one that is read now, or next; 0: read by an earlier writer
        self._wanted = 0  # names that stayed, the last time
        self._asked: tuple[str, int] | None = None  # request, and the block of which rows may not have been given yet
        self._file = self._opened()
        keys, checks = list[int](), list[int]()
        with open(path, "rb") as lines:
            whole = 0
            for line in lines:
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, whole)
                    break
                whole += len(line)
                key, name = json.loads(line)
                keys.append(key)
                checks.append(_check(name))
        found, first = np.unique(np.array(keys, np.int64), return_index=True)
        self._known.add(found, np.array(checks, np.int64)[first])

    def note(self, key: int, name: str) -> None:
        """Keep a name at the next `flush`, if it is new."""
        self._noted.append((key, name))

    def note_all(self, keys: np.ndarray, checks: np.ndarray, name: Callable[[int], str]) -> None:
        """Keep the names of `keys` (n,) that are new; name(i) is the one of keys[i], and `checks` (n,) are their
        CRC-32. Warns of a name that shares its key with another."""
        is_known, known = self._known.find(keys, self._block)
        new = np.flatnonzero(~is_known)
        if len(new):
            new = np.sort(new[np.unique(keys[new], return_index=True)[1]])
            self._known.add(keys[new], checks[new])
            self._new += [
                f"[{key}, {quoted(name(at))}]\n" for key, at in zip(keys[new].tolist(), new.tolist(), strict=True)
            ]
            _, known = self._known.find(keys, self._block)
        for at in np.flatnonzero(known != checks).tolist():
            if (other := name(at)) not in self._told:
                self._told.add(other)
                words = "%r shares its key %d, and so its row, with another name in %s"
                log.warning(words, other, keys[at], self._path.name)

    def flush(self) -> None:
        """Write the new names, at the end of a block. Raises RunError."""
        if self._noted:
            noted, self._noted = self._noted, []
            checks = np.array([_check(name) for _, name in noted], np.int64)
            self.note_all(np.array([key for key, _ in noted], np.int64), checks, lambda at: noted[at][1])
        content, self._new = "".join(self._new).encode(), []
        try:
            while content:
                content = content[os.write(self._file, content) :]
        except OSError as error:
            why = f"{self._path}: cannot be written: {error.strerror or error}"
            raise RunError(why, code="run/output-not-written") from error
        self._block += 1

    def leave_out(self) -> None:
        """Leave out names of ids without a row, if these may be half of all, once it is known which they are. Call it
        when all rows that were given away are in the ring, or trained. Raises RunError."""
        if self._asked is None:
            if len(self._known) >= max(FEWEST_NAMES, 2 * self._wanted):
                with contextlib.suppress(RunDirError):  # a full disk: later
                    self._asked = write_request(self._path.parent, {"ask": "ids"}), self._block - 1
            return
        request, block = self._asked
        answer = answer_file(self._path.parent, request)
        try:
            wanted = np.fromfile(answer, np.int64)
            answer.unlink()
        except FileNotFoundError:
            return
        left, self._asked = self._known.those(wanted, block), None
        self._wanted = len(left)
        if len(self._known) < 2 * len(left):
            return
        try:
            keep_names(self._path, left)
        except OSError as error:
            log.warning("%s: cannot be rewritten: %s", self._path, error.strerror or error)
            return
        before, self._file, self._known = self._file, self._opened(), left
        os.close(before)

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def __del__(self) -> None:
        if "_file" in self.__dict__:
            os.close(self._file)


def _check(name: str) -> int:
    return zlib.crc32(name.encode())


def names_of(run: Path) -> dict[int, str]:
    """Return the names by their keys that a run has met, also while it is running. {} if it has none."""
    found = dict[int, str]()
    for path in sorted(run.glob(ALL_TEXTS)):
        with open(path, "rb") as lines:
            found |= {int(key): str(name) for key, name in (json.loads(one) for one in lines if one.endswith(b"\n"))}
    return found


def keep_names(path: Path, known: KnownKeys) -> None:
    """Leave only the lines of `known` keys in a file of names. It is replaced whole, and read in parts. Raises
    OSError."""
    with temporary(path) as aside:
        with open(path, "rb") as lines, open(aside, "wb") as left:
            while part := lines.readlines(PART):
                part = part if part[-1].endswith(b"\n") else part[:-1]
                keys = np.array([line[1 : line.index(b",")] for line in part], np.bytes_).astype(np.int64)
                left.writelines(compress(part, known.find(keys)[0]))
                pause(0)
            left.flush()
            os.fsync(left.fileno())
        aside.replace(path)
    with contextlib.suppress(OSError):  # it is replaced, which its writer must know
        sync_folder(path.parent)
