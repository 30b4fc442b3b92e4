"""Output of all commands: results on standard output, messages on standard error. Standard streams may be closed, full,
or have a reader that is gone."""

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
    """Let signals interrupt the reading of a job file, which may be an endless pipe; not the imports for it."""
    import hogwild.config.load  # noqa: F401

    with raising_on_signals():
        yield


def print_result(text: str) -> None:
    """Print a result. A reader that is gone (`hogwild show | head`, a closed terminal) is no error. Raises RunError if
    the disk is full."""
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):
            return
        raise RunError(
            f"the result cannot be written to standard output: {error.strerror}", code="run/stdout"
        ) from error


def say(message: str) -> None:
    """Print a message for a person; ignores a closed stderr, since the exit status remains."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def hold_standard_streams() -> None:
    """Open /dev/null on the descriptors 0 to 2 that are closed. Otherwise the next file or pipe would get these
    numbers, and with them all output of native code or of a worker's start."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:  # `print(file=None)` would write to standard output
        sys.stderr = os.fdopen(os.dup(LAST_STANDARD), "w")


def flush_results() -> None:
    """Flush here: the interpreter's own flush at exit would report lost output and change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
