"""The progress line on the terminal while data is read: share and speed."""

import sys
import time
from contextlib import suppress

LINE_S = 1.0


class ReadingLine:
    """`reading data.train: 45 %  12,000 samples/s`, at most once a second; in place on a terminal."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted and sys.stderr is not None
        self._is_terminal = self._is_wanted and sys.stderr.isatty()
        self._is_open = False
        self._next_s = time.monotonic() + LINE_S
        self._last: tuple[str, int, float] = ("", 0, 0.0)

    def show(self, what: str, done: int, count: int, things: str = "samples") -> None:
        now_s = time.monotonic()
        if self._last[0] != what:
            self._last = (what, done, now_s)
        if not self._is_wanted or now_s < self._next_s:
            return
        rate = (done - self._last[1]) / max(1e-9, now_s - self._last[2])
        self._next_s, self._last = now_s + LINE_S, (what, done, now_s)
        text = f"reading {what}: {done / count:.0%}  {rate:,.0f} {things}/s".replace("%", " %")
        self._tell(f"\r\x1b[2K{text}" if self._is_terminal else f"{text}\n")
        self._is_open = self._is_terminal

    def end(self) -> None:
        if self._is_open:
            self._tell("\r\x1b[2K")
            self._is_open = False

    @staticmethod
    def _tell(text: str) -> None:
        with suppress(OSError, ValueError):  # its reader has gone
            sys.stderr.write(text)
            sys.stderr.flush()
