"""What every command of the command line uses: results on standard output, words on standard error, signals while it
reads. Standard streams may be closed, full, or have a reader that is gone."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from hogwild.errors import RunError
from hogwild.host import raising_on_signals

LAST_STANDARD = 2  # 0, 1, 2: standard input, output, error


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Around a job file, which may be a terminal or a pipe that does not end; not around the imports for it."""
    import hogwild.config.load  # noqa: F401

    with raising_on_signals():
        yield


def print_result(text: str) -> None:
    """A result. A reader that has gone (`hogwild show | head`, a closed terminal) has what it wanted, and the status
    says how the command went. Raises RunError for a disk that is full."""
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):
            return
        raise RunError(
            f"the result cannot be written to standard output: {error.strerror}", code="run/stdout"
        ) from error


def say(message: str) -> None:
    """To a person. Where nobody reads it, the exit status remains."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def hold_standard_streams() -> None:
    """Takes the numbers 0 to 2 where they are closed: the next file or pipe would get them, and whatever is printed
    by native code or a worker's start with it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:  # `print(file=None)` would take standard output
        sys.stderr = os.fdopen(os.dup(LAST_STANDARD), "w")


def flush_results() -> None:
    """The interpreter's own flush at exit would complain, and change the status, for what was dropped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
