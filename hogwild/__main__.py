"""The command, as `python -m hogwild`, `python run.py` and the console script `hogwild` start it.

Its first act is to take signals: a Ctrl-C while the command line is imported is no traceback then."""

import sys
from typing import NoReturn

from hogwild.host_signals import note_signals


def main() -> NoReturn:
    """Runs the command that `sys.argv` names and exits with its status."""
    note_signals()
    from hogwild.host_topology import remember_affinity

    remember_affinity()  # before anything can import torch, which may narrow it
    from hogwild.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
