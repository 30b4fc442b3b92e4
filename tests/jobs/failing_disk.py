"""The command line on a slow disk that fails: every sync takes a while, and while the first argument, a file, is there,
those of checkpoints end with an input/output error."""

import errno
import os
import sys
import time
from pathlib import Path

from hogwild.__main__ import main

failing = Path(sys.argv.pop(1))
sync = os.fsync


def sync_slowly(descriptor: int) -> None:
    time.sleep(0.1)
    if ".tmp-update-" in os.readlink(f"/proc/self/fd/{descriptor}") and failing.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)


os.fsync = sync_slowly
main()
