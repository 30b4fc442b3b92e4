"""Entry point of the command: `python -m hogwild`, `python run.py` and the console script `hogwild`.

It installs the signal handlers first, so that Ctrl-C during the imports prints no traceback."""

import atexit
import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from hogwild.host.signals import note_signals

# The modules of pyproject.toml's dependencies: a clone may be run before they are installed.
NEEDED = [
    "torch",
    "numpy",
    "psutil",
    "yaml",
    "pydantic",
    "typer",
    "rich",
    "cloudpickle",
    "safetensors",
    "threadpoolctl",
]


def main() -> NoReturn:
    """Run the command that `sys.argv` names and exit with its status."""
    _speak_utf8()
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # registered first, so called last
    note_signals()
    _require_packages()
    from hogwild.host.topology import remember_affinity

    remember_affinity()  # before anything can import torch, which may narrow it
    from hogwild.cli.main import run

    statuses.append(run(sys.argv[1:]))
    sys.exit(statuses[0])


def _speak_utf8() -> None:
    """Start this command again in Python's UTF-8 mode where names of files are ASCII (a POSIX locale with
    PYTHONUTF8=0): there a job file could name no path and an argument no value beyond ASCII. The standard streams stay
    ASCII with escapes, as the terminal's locale says."""
    if sys.getfilesystemencoding() == "ascii" and sys.executable:
        os.environ["PYTHONUTF8"] = "1"
        os.environ.setdefault("PYTHONIOENCODING", "ascii:backslashreplace")
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _require_packages() -> None:
    """Exit with the command that installs them if packages are missing: no error of ours can be shown without them."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"hogwild needs packages that are not installed for {sys.executable}: {', '.join(missing)}\n"
            "Install them in the clone: make shell    (into .venv, and a shell that uses it)\n"
            f"or for this Python:        {sys.executable} -m pip install ."
        )


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
