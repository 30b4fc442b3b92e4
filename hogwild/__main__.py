"""The command, as `python -m hogwild`, `python run.py` and the console script `hogwild` start it.

Its first act is to take signals: a Ctrl-C while the command line is imported is no traceback then."""

import atexit
import os
import sys
from typing import NoReturn

from hogwild.host.signals import note_signals


def main() -> NoReturn:
    """Runs the command that `sys.argv` names and exits with its status."""
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # the first to be registered is the last to be called
    note_signals()
    from hogwild.host.topology import remember_affinity

    remember_affinity()  # before anything can import torch, which may narrow it
    from hogwild.cli.main import run

    statuses.append(run(sys.argv[1:]))
    sys.exit(statuses[0])


def _leave(statuses: list[int]) -> None:
    """After all other exit functions. An interpreter with torch in it is not taken apart: that takes 0.4 s of every
    command, and aborts the process if a thread was given up in the middle of torch's C++ (`background_thread.py`)."""
    if statuses and "torch" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(statuses[0])


if __name__ == "__main__":
    main()
