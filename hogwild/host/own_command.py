"""Child processes of our own code: the command lines that start them, and their end."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hogwild.version import PACKAGE_ROOT

# -P and the explicit folder: a user's own hogwild/ in the current folder must not shadow ours.
_FIND_US = "import sys; sys.path.insert(0, sys.argv[1]); import hogwild; sys.path.remove(sys.argv.pop(1))"
# A trial dies with us, and its workers die with the trial.
_COMMAND = """
from hogwild import host
from hogwild.__main__ import main
host.die_with_parent(int(sys.argv.pop(1)))
main()
"""


def python_child(code: str, *arguments: str) -> list[str]:
    """Return the command line of a child that runs `code`, which may import hogwild; `sys.argv[1:]` are `arguments`."""
    return [sys.executable, "-P", "-c", f"{_FIND_US}\n{code}", PACKAGE_ROOT, *arguments]


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of `hogwild ARGUMENTS` for a child that dies with the calling thread."""
    return python_child(_COMMAND, str(os.getpid()), *arguments)


def wait_or_kill(process: "subprocess.Popen[Any]", grace_s: float) -> None:
    """Wait for the end of a child; kill it after `grace_s`, or if a second Ctrl-C ends the wait."""
    try:
        process.wait(grace_s)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
