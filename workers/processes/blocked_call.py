"""The call that a worker is blocked in, as one phrase for an error, from faulthandler's output. Pure, except that it
reads the quoted source line.

    Thread 0x00007f… (most recent call first):             a user's thread, perhaps
      …
    Current thread 0x00007f… (most recent call first):
      File "…/mymodel.py", line 31 in forward       -> in `self.event.wait()` at mymodel.py:31 (forward)
      …
      File "<string>", line 1 in <module>                   the training thread: the one that began at a module
"""

import linecache
import os
import re
from dataclasses import dataclass

from hogwild.user_code import is_users

_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')
LONGEST_LINE = 80


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a faulthandler dump."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} ({self.function})"


def blocked_in(dump: str) -> str:
    """Return `in CALL at FILE:LINE (FUNCTION), called at FILE:LINE (FUNCTION)`: the innermost frame of the training
    thread, and the user's frame that led there, if different; "" if the dump has no such thread. Reads a source file:
    do not call it where a hanging file system must not block the caller."""
    frames = training_thread(dump)
    if not frames:
        return ""
    innermost = frames[0]
    source = linecache.getline(innermost.file, innermost.line).strip()
    quoted = f"`{source[:LONGEST_LINE]}` at " if source else ""
    users = next((frame for frame in frames if is_users(frame.file)), innermost)
    return f"in {quoted}{innermost}" + (f", called at {users}" if users is not innermost else "")


def training_thread(dump: str) -> list[Frame]:
    """Return the frames, innermost first, of the training thread in `dump`. It is the main thread, the only one that
    began at a module; if too many frames are left out to see that, the thread that took the signal; if the dump is cut
    off, an empty list."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in dump.splitlines():
        if head := _HEAD.match(line):
            threads.append((head[1] == "Current thread", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append(Frame(frame[1], int(frame[2]), frame[3]))
    begun_at_a_module = [frames for _, frames in threads if frames and frames[-1].function == "<module>"]
    took_the_signal = [frames for is_current, frames in threads if is_current]
    return next(iter(begun_at_a_module[-1:] or took_the_signal[-1:]), [])
