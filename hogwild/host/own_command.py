"""The command line that starts this program again, as a child process."""

import os
import sys
from collections.abc import Sequence

from hogwild.version import PACKAGE_ROOT

# -P and the explicit folder: as in deep_check. A trial dies with us, and its workers die with the trial.
_CHILD = """
import sys
home, parent = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, home)
from hogwild import host
from hogwild.__main__ import main
host.die_with_parent(parent)
sys.path.remove(home)
del sys.argv[1:3]
main()
"""


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of `hogwild ARGUMENTS` for a child that dies with the calling thread."""
    home = PACKAGE_ROOT
    return [sys.executable, "-P", "-c", _CHILD, home, str(os.getpid()), *arguments]
