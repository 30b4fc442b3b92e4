"""Unix sockets in folders with long paths."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """Yield a short address of the socket `name` in a folder, to bind, connect or unlink it: a socket's path has at
    most 107 bytes. Raises OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
