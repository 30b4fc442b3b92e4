"""A process that has nothing to do with a job, run beside it: what holds this one up is the machine's doing.

Every ten milliseconds it works for some four tenths of one, in Python alone: no file, no lock, no system call but the
sleep. `python -m benchmarks.bystander` does so until its standard input ends, and prints its longest piece of work in
milliseconds."""

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.commands import ROOT

EVERY_S = 0.01
PIECES = 8  # per turn, drawn from
TABLE = 400  # of them: more than the caches near a core keep


@contextlib.contextmanager
def bystander() -> Iterator[Callable[[], float]]:
    """Runs one; the callable ends it and answers its longest work so far, in milliseconds."""
    command = [sys.executable, "-m", "benchmarks.bystander"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield lambda: float(process.communicate()[0])


def main() -> None:
    table = [{str(key): [key / 7 + row for _ in range(5)] for key in range(8)} for row in range(TABLE)]
    longest_s, row = 0.0, 0
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        began = time.perf_counter()
        for _ in range(PIECES):
            row = (row + 1) % TABLE
            json.loads(json.dumps(table[row]))
        longest_s = max(longest_s, time.perf_counter() - began)
    print(1000 * longest_s)


if __name__ == "__main__":
    main()
