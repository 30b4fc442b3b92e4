"""File systems of a test's own: small, read-only, full. In a private mount namespace, so that nothing of them is seen
outside, nor left when this process is killed."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import zygote

CLONE_NEWNS = 0x00020000  # <linux/sched.h>


@cache
def _why_not() -> str:
    """Moves this process into a mount namespace of its own, once; why that is not permitted, if it is not."""
    zygote.end()  # it stays in the namespace that it was started in
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        return os.strerror(ctypes.get_errno())
    made = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return made.stderr.strip()


def require() -> None:
    """Skips the test where mounting is not permitted."""
    if reason := _why_not():
        pytest.skip(f"no mount namespace of our own is permitted here: {reason}")


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of `size` (`8m`) in memory at `place`; gone afterwards, whoever still uses it."""
    require()
    place.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    try:
        yield place
    finally:
        _run("umount", "-l", str(place))


def change(place: Path, options: str) -> None:
    """`ro`, `rw`, `size=64m` from now on."""
    _run("mount", "-o", f"remount,{options}", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
