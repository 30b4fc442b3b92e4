"""`python run.py --procs 4` trains; `python run.py --help` says what else there is. The same as `python -m hogwild`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python can read this file, but not the others
    sys.exit(f"hogwild needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")

from hogwild.__main__ import main

if __name__ == "__main__":
    main()
