"""Standard output and error of a child: at first memory that its supervisor holds, then its own log. Torch-free."""

import os
import sys

from hogwild import host

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


def redirect_to_files(log: str, stacks: str) -> None:
    """Redirect standard output and error to the worker's own log, opened for appending: one write is one line, with no
    shared buffer or lock, and no full pipe can block. Earlier output is copied there and removed from memory, so that
    the supervisor does not copy it again. Stacks go to their own file."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = os.dup(STANDARD_ERROR)
    with open(log, "ab", buffering=0) as file:
        file.write(os.pread(words, os.fstat(words).st_size, 0))
        for standard in (STANDARD_OUTPUT, STANDARD_ERROR):
            os.dup2(file.fileno(), standard)
    os.ftruncate(words, 0)
    os.close(words)
    host.write_stacks_to(os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))


def redirect_to_memory(words: int) -> None:
    """Redirect standard output and error to memory that the supervisor holds, too, until the worker has its log."""
    os.dup2(words, STANDARD_OUTPUT)
    os.dup2(words, STANDARD_ERROR)
    os.close(words)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
