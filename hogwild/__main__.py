"""Entry point of the command: `python -m hogwild`, `python run.py` and the console script `hogwild`.

It installs the signal handlers first, so that Ctrl-C during the imports prints no traceback."""

import atexit
import os
import sys
from typing import NoReturn

from hogwild.host.signals import note_signals


def main() -> NoReturn:
    """Run the command that `sys.argv` names and exit with its status."""
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # registered first, so called last
    note_signals()
    from hogwild.host.topology import remember_affinity

    remember_affinity()  # before anything can import torch, which may narrow it
    from hogwild.cli.main import run

    statuses.append(run(sys.argv[1:]))
    sys.exit(statuses[0])


def _leave(statuses: list[int]) -> None:
    """Leave the process after all other exit functions. With torch loaded, skip the interpreter's finalization: it
    takes 0.4 s, and aborts the process if a thread was abandoned inside torch's C++ (`background_thread.py`)."""
    if statuses and "torch" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(statuses[0])


if __name__ == "__main__":
    main()
