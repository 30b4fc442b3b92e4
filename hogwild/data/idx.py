"""The IDX format of the MNIST family, plain or gzipped, read completely and checked.

byte  0, 1   zero
      2      type of a value (8: unsigned byte)
      3      number of dimensions D
      4 ...  D sizes, 4 bytes each, most significant byte first
      then the values, the last dimension fastest
"""

import math
import zlib
from pathlib import Path

import numpy as np

from hogwild.data.locate import read
from hogwild.errors import DataError

_UNSIGNED_BYTE = 8
_KINDS = {1: "labels (1 dimension)", 3: "images (3 dimensions)"}
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 16


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the values of an IDX file of unsigned bytes as an array of `dimensions` dimensions, uint8.

    Raises DataError with the file, the found and the expected value: damaged gzip, not an IDX file, another number of
    dimensions, fewer or more bytes than the header promises, no items."""
    content = _unpacked(path)
    shape = _shape(path, content, dimensions)
    start = 4 + 4 * dimensions
    promised, found = math.prod(shape), len(content) - start
    if found != promised:
        what = "truncated" if found < promised else "has bytes after its end"
        raise DataError(
            f"{path}: {what}: the header promises {_times(shape)} = {promised:,} bytes of values after byte "
            f"{start}, the file holds {found:,}; get the file again",
            code="data/truncated-file",
        )
    if shape[0] == 0:
        raise DataError(f"{path}: contains no items: its header says {_times(shape)}", code="data/empty")
    return np.frombuffer(content, np.uint8, promised, start).reshape(shape)


def _shape(path: Path, content: bytes | bytearray, dimensions: int) -> tuple[int, ...]:
    """Return the sizes in the header, after checking the four bytes before them."""
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    found = bytes(content[:4])
    if found != expected:
        hint = f": {_KINDS[found[3]]} where" if found[:3] == expected[:3] and found[3] in _KINDS else ";"
        raise DataError(
            f"{path}: wrong magic number at byte 0: found {found!r}{hint} {_KINDS[dimensions]} were "
            f"expected, which begin with {expected!r}",
            code="data/wrong-format",
        )
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(
            f"{path}: truncated: the header is {header} bytes long, the file holds {len(content)}",
            code="data/truncated-file",
        )
    return tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))


def _unpacked(path: Path) -> bytes | bytearray:
    """Return the file's content, unzipped if it starts like gzip: file names are not reliable."""
    raw = read(path)
    return _gunzip(path, raw) if raw[:2] == _GZIP else raw


def _gunzip(path: Path, raw: bytes) -> bytearray:
    """Unzip piece by piece instead of by `gzip.decompress`, so that an error can name the place."""
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: expect gzip, check its sum and length
    content = bytearray()
    for at in range(0, len(raw), _CHUNK):
        try:
            content += stream.decompress(raw[at : at + _CHUNK])
        except zlib.error as error:
            end = min(at + _CHUNK, len(raw))
            raise DataError(
                f"{path}: damaged gzip file between bytes {at:,} and {end:,} of {len(raw):,}, after "
                f"{len(content):,} good bytes: {error}; get the file again",
                code="data/damaged-file",
            ) from error
    if not stream.eof:
        raise DataError(
            f"{path}: truncated gzip file: it stops after {len(raw):,} bytes ({len(content):,} unpacked) "
            "without its end mark; get the file again",
            code="data/truncated-file",
        )
    return content


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
