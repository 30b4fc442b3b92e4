"""The command, as `python -m hogwild`, `python run.py` and the console script `hogwild` start it.

Its first act is to take signals: a Ctrl-C while the command line is imported is no traceback then."""

import atexit
import os
import sys
from typing import NoReturn

from hogwild.host_signals import note_signals


def main() -> NoReturn:
    """Runs the command that `sys.argv` names and exits with its status."""
    note_signals()
    from hogwild.host_topology import remember_affinity

    remember_affinity()  # before anything can import torch, which may narrow it
    from hogwild.cli import run

    status = run(sys.argv[1:])
    background = sys.modules.get("hogwild.background")
    if background is not None and background.is_anything_given_up():
        # The interpreter's own end takes the lock from a thread in the middle of torch's C++, which aborts then.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
