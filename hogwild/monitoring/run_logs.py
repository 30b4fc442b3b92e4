"""The logs of a run, as they are and as they grow."""

import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.2
BLOCK = 1 << 20  # bytes read at once


def follow(file: Path, goes_on: Callable[[], bool]) -> Iterator[str]:
    """Yield the complete lines of a file, several at once and without the last line end, then those appended to it,
    until `goes_on` is False; then also a last line without an end. The file may not exist yet, be replaced, or be cut:
    then it is read from its beginning."""
    stream: io.BufferedReader | None = None
    rest = b""
    try:
        while True:
            is_last = not goes_on()  # asked first: what was written before the end is still read
            if stream is None or _is_another(stream, file):
                if stream is not None:
                    stream.close()
                stream, rest = _opened(file), b""
            while stream is not None and (block := stream.read(BLOCK)):
                whole, end, rest = (rest + block).rpartition(b"\n")
                if end:
                    yield whole.decode(errors="replace")
            if is_last:
                break
            time.sleep(POLL_S)
        if rest:
            yield rest.decode(errors="replace")
    finally:
        if stream is not None:
            stream.close()


def _opened(file: Path) -> io.BufferedReader | None:
    try:
        return file.open("rb")
    except FileNotFoundError:
        return None


def _is_another(stream: io.BufferedReader, file: Path) -> bool:
    """Return whether the name has another file now, or this one was cut."""
    try:
        named, ours = file.stat(), os.fstat(stream.fileno())
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino) or ours.st_size < stream.tell()
