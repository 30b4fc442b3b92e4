"""Files of word vectors: word2vec's text and binary formats (also fastText's .vec), and GloVe's; plain or packed.

word2vec   a line `words dimensions`, then rows: a word, a space and its numbers, as text or as float32
GloVe      rows of text without that line; a word may have spaces

White space is ASCII's: other spaces (U+00A0, U+3000) are characters of a word, here as for `hogwild.data.Text`."""

import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hogwild.data.text_file import PACKED, explained, opened
from hogwild.errors import DataError, UsageError

STREAMS = tuple(sign for sign, name in PACKED.items() if name != "zip")  # a checkpoint of torch is a zip archive
PEEKED = 1 << 16  # bytes in which the first lines are looked for

NOT_IN_A_WORD = re.compile("[\0-\x20\ud800-\udfff]")  # what separates words, and what UTF-8 does not have

Content = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class VectorFile:
    """Vectors of a file: those asked for, `words` and their `matrix` (n, D) float32; and how many it has in all."""

    words: list[str]
    matrix: np.ndarray
    total: int

    @classmethod
    def read(cls, path: Path, wanted: Iterable[str] | None = None, binary: bool | None = None) -> "VectorFile":
        """Read the vectors of `wanted` words, or of all. `binary`: None to find out. Raises DataError."""
        with explained(path), path.open("rb") as file:
            content: Content
            streams = opened(path, file, "bytes")
            if len(streams) > 1 or not streams[0].read(1):
                content = streams[0].read()
            else:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count, width, at = _header(path, content)
        if binary and count is None:
            raise _wrong(path, "line 1 must be `words dimensions` in the binary format")
        if binary is None:
            seen = content[at : at + PEEKED]
            line, _, rest = seen.partition(b"\n")  # the first row, or what was read of it
            fields = line.split(b" ")[1:]
            is_text = _are_numbers(fields[:width] if rest or len(seen) < PEEKED else fields[:-1])
            binary = count is not None and not is_text
        rows = (_binary_rows if binary else _text_rows)(path, content, at, count, width)
        chosen = None if wanted is None else {word.encode() for word in wanted}
        words, vectors, total = list[str](), list[np.ndarray](), 0
        for word, numbers in rows:
            total += 1
            if chosen is None or word in chosen:
                try:
                    words.append(word.decode())
                except UnicodeDecodeError as error:
                    raise _wrong(path, f"word {total:,} is not text: {error}; perhaps the file is binary") from None
                try:
                    texts = [] if binary else [float(one) for one in numbers.split(b" ")]
                except ValueError as error:
                    raise _wrong(path, f"the row of {words[-1]!r} must have {width} numbers: {error}") from None
                vectors.append(np.frombuffer(numbers, "<f4") if binary else np.array(texts, np.float32))
        if count is not None and total != count:
            raise _wrong(
                path, f"the header promises {count:,} words, but the file holds {total:,}; perhaps it is truncated"
            )
        if len(set(words)) != len(words):
            twice = next(word for word, many in Counter(words).items() if many > 1)
            raise _wrong(path, f"the word {twice!r} occurs twice")
        return cls(words, np.stack(vectors) if vectors else np.empty((0, width), np.float32), total)


def unwritable(words: Iterable[object]) -> list[str]:
    """Return the words that word2vec's formats cannot represent: an empty one, and those that occur twice."""
    return [word for word, count in Counter(map(str, words)).items() if not word or count > 1]


def encoded(names: Iterable[object], forbidden: re.Pattern[str] = NOT_IN_A_WORD) -> tuple[list[str], list[str]]:
    """Return names as a file's format can have them, and those that it cannot: if there are any, each `forbidden`
    character and each % is written as %XX, the bytes of its UTF-8, in all names, as URLs have them. Raises UsageError
    for an empty name."""
    texts = [*map(str, names)]
    if "" in texts:
        raise UsageError("'' cannot be written in this format: it is empty", code="usage/bad-value")
    changed = [text for text in texts if forbidden.search(text)]
    rule = re.compile(f"%|{forbidden.pattern}")
    return [rule.sub(_as_url, text) for text in texts] if changed else texts, changed


def _as_url(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def has_vectors(path: Path) -> bool:
    """Return whether a file begins like one of vectors: `words dimensions`, or a word and numbers."""
    with explained(path), path.open("rb") as file:
        first = file.read(PEEKED)
        if first.startswith(STREAMS):
            file.seek(0)
            first = opened(path, file, "bytes")[0].read(PEEKED)
    fields = first.partition(b"\n")[0].split()
    return _sizes(fields) is not None or (len(fields) > 2 and _are_numbers(fields[1:]))


def _header(path: Path, content: Content) -> tuple[int | None, int, int]:
    """Return (words, dimensions, place of the first row) of word2vec's first line; words is None for GloVe's files."""
    end = content.find(b"\n")
    first = content[: end if end >= 0 else PEEKED]
    fields = first.split()
    if sizes := _sizes(fields):
        return *sizes, end + 1
    if len(fields) > 2 and _are_numbers(fields[1:]):
        return None, len(fields) - 1, 0
    raise _wrong(path, f"line 1 must be `words dimensions`, or a word and its numbers, not {first[:60]!r}")


def _sizes(fields: list[bytes]) -> tuple[int, int] | None:
    is_header = len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]) > 0
    return (int(fields[0]), int(fields[1])) if is_header else None


def _are_numbers(fields: list[bytes]) -> bool:
    try:
        return bool([float(field) for field in fields if field])
    except ValueError:
        return False


def _text_rows(path: Path, content: Content, at: int, count: int | None, width: int) -> Iterator[tuple[bytes, bytes]]:
    number, most = (1, len(content)) if count is None else (2, count + 1)
    while at < len(content) and number <= most:
        end = content.find(b"\n", at)
        end = len(content) if end < 0 else end
        word, *numbers = content[at:end].strip(b" \r\t").rsplit(b" ", width)
        at, number = end + 1, number + 1
        if not word and not numbers and not content[at:].strip():
            return
        if len(numbers) != width:
            raise _wrong(path, f"line {number - 1}: must have a word and {width} numbers: {len(numbers)} numbers")
        yield word, b" ".join(numbers)


def _binary_rows(path: Path, content: Content, at: int, count: int | None, width: int) -> Iterator[tuple[bytes, bytes]]:
    for _ in range(count or 0):
        end = content.find(b" ", at)
        if end < 0 or end + 1 + 4 * width > len(content):
            return
        word = content[at:end].lstrip(b"\n")  # word2vec.c ends a row with a new line, gensim does not
        at = end + 1 + 4 * width
        yield word, content[end + 1 : at]


def _wrong(path: object, why: str) -> DataError:
    return DataError(f"{path}: not in word2vec's format: {why}", code="data/wrong-format")
