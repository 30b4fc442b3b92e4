"""The order in which messages of several partitions were given away, in a file, so that a resume gives them in this
order again. Each partition has an order of its own, but the network decides which partition has the next message.

    batch      1   2   3   4          checkpoint: 1, 2 and 4 are trained, 3 is not; place: before 3
    messages   aab baa bba bbb        resume: 3 must be "bba" again, and "bbb" left out

A file is a list of runs (partition, messages, offset behind the last one), 16 bytes each, written and synced before the
messages are given away. A run that goes on is written anew. One process writes it; half a run at its end is of a killed
one. It only grows: by a run whenever another partition has the next message."""

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

RUN = np.dtype([("partition", "<i4"), ("many", "<i4"), ("end", "<i8")])
LONGEST = 2**31 - 1  # messages of a run
UNKNOWN = -1  # the partition of messages whose order is lost


class Run(NamedTuple):
    """The next `many` messages: of one partition, and before offset `end`."""

    partition: int
    many: int
    end: int


class ArrivalOrder:
    """The file at `path`; None: kept nowhere. Begins at its first message. Raises OSError."""

    def __init__(self, path: Path | None) -> None:
        self._file = -1
        self._ahead = deque[Run]()  # runs to be given again
        self._index = 0  # of the first of them in the file, or of the next run
        self._taken = 0  # messages of the first of them that were left behind
        self._last: Run | None = None  # the run before `_index`, if it may go on
        if path is not None:
            path.parent.mkdir(exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.go_to(0)

    @property
    def next(self) -> Run | None:
        """The run that comes next, or the rest of it; None if that is not decided yet."""
        run = self._ahead[0] if self._ahead else None
        return run and run._replace(many=run.many - self._taken)

    def go_to(self, at: int) -> None:
        """Go on behind the first `at` messages."""
        if self._file < 0:
            return
        whole = os.fstat(self._file).st_size // RUN.itemsize * RUN.itemsize
        os.ftruncate(self._file, whole)
        runs = np.frombuffer(os.pread(self._file, whole, 0), RUN)
        ends = np.cumsum(runs["many"], dtype=np.int64)
        self._index = int(np.searchsorted(ends, at, "right"))
        self._ahead = deque(Run(*one) for one in runs[self._index :].tolist())
        self._taken, self._last = at - (int(ends[self._index - 1]) if self._index else 0), None
        if self._ahead:
            return
        lost, self._taken = self._taken, 0
        if lost:
            self.add([Run(UNKNOWN, lost, 0)])
        elif self._index:
            self._last = Run(*runs[-1].tolist())

    def take(self, count: int) -> None:
        """Leave the next `count` messages, at most those of `next`, behind."""
        self._taken += count
        if self._taken == self._ahead[0].many:
            self._last = self._ahead.popleft()
            self._index, self._taken = self._index + 1, 0

    def forget_rest(self) -> None:
        """Decide anew what comes next."""
        if not self._ahead:
            return
        if self._taken:
            begun = self._ahead[0]._replace(many=self._taken)
            self._write(begun, self._index)
            self._index += 1
        os.ftruncate(self._file, self._index * RUN.itemsize)
        self._ahead, self._taken, self._last = deque(), 0, None

    def add(self, runs: Iterable[Run]) -> None:
        """Write what is given away next. Only if nothing is to be given again."""
        if self._file < 0:
            return
        for run in runs:
            last = self._last
            if last is not None and run.partition == last.partition and run.many + last.many <= LONGEST:
                self._last = run._replace(many=run.many + last.many)
            else:
                self._last, self._index = run, self._index + 1
            self._write(self._last, self._index - 1)
        os.fdatasync(self._file)

    def _write(self, run: Run, index: int) -> None:
        os.pwrite(self._file, np.array([run], RUN).tobytes(), index * RUN.itemsize)

    def __del__(self) -> None:
        if self.__dict__.get("_file", -1) >= 0:
            os.close(self._file)
