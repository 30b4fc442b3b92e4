"""Which call a worker is blocked in, in one phrase for an error: from what faulthandler wrote. Pure, but for the one
line of source that is quoted.

    Thread 0x00007f… (most recent call first):             a thread of the user's, perhaps
      …
    Current thread 0x00007f… (most recent call first):
      File "…/mymodel.py", line 31 in forward       -> in `self.event.wait()` at mymodel.py:31 (forward)
      …
      File "<string>", line 1 in <module>                   the training thread: the one that began at a module
"""

import linecache
import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

from hogwild.version import PACKAGE_ROOT

_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {*(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
    | {os.path.join(PACKAGE_ROOT, package) for package in ("hogwild", "workers")}
)
LONGEST_LINE = 80


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of faulthandler's."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Neither Python's, nor an installed package's, nor ours."""
        return not self.file.startswith(("<", *_LIBRARIES))

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} ({self.function})"


def blocked_in(dump: str) -> str:
    """`in CALL at FILE:LINE (FUNCTION), called at FILE:LINE (FUNCTION)`: the innermost frame of the training thread,
    and the user's that led there when that is another. "" for a dump without one. Reads the innermost frame's source:
    not to be called where a file system that hangs may hang the caller."""
    frames = training_thread(dump)
    if not frames:
        return ""
    innermost = frames[0]
    source = linecache.getline(innermost.file, innermost.line).strip()
    quoted = f"`{source[:LONGEST_LINE]}` at " if source else ""
    users = next((frame for frame in frames if frame.is_users), innermost)
    return f"in {quoted}{innermost}" + (f", called at {users}" if users is not innermost else "")


def training_thread(dump: str) -> list[Frame]:
    """The frames, innermost first, of the thread that runs the training loop, in `dump`. It is the main one, the
    only one that began at a module; where so many frames were left out that this is not to be seen, the one that took
    the signal; in a dump that was cut off, nothing."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in dump.splitlines():
        if head := _HEAD.match(line):
            threads.append((head[1] == "Current thread", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append(Frame(frame[1], int(frame[2]), frame[3]))
    return _main_of(threads)


def _main_of(threads: Sequence[tuple[bool, list[Frame]]]) -> list[Frame]:
    begun_at_a_module = [frames for _, frames in threads if frames and frames[-1].function == "<module>"]
    took_the_signal = [frames for is_current, frames in threads if is_current]
    return next(iter(begun_at_a_module[-1:] or took_the_signal[-1:]), [])
