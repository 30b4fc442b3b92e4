"""This program again, as a child process: the command line that starts it, and its end."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

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


def wait_or_kill(process: "subprocess.Popen[Any]", grace_s: float) -> None:
    """Wait for the end of a child; kill it after `grace_s`, or if a second Ctrl-C ends the wait."""
    try:
        process.wait(grace_s)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
