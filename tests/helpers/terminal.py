"""A terminal as far as we write to one: characters, line ends, lines up, the upper left corner, clearing. What it shows
is what a person would see. Raises for any other sequence: then it is this file that must learn it, or the code that
must do without."""

import re
import threading
from typing import IO

TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Terminal:
    """`rows`: every line from the first that was written; the last `height` of them are on the screen."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> "Terminal":
        assert "".join(match.group() for match in TOKEN.finditer(text)) == text, f"what is this? {text!r}"
        for match in TOKEN.finditer(text):
            if match.group(2):
                self._control(match.group(1), match.group(2))
            elif match.group() == "\r":
                self.column = 0
            elif match.group() == "\n":
                self._down()
                self.column = 0
            else:
                for char in match.group():
                    self._put(char)
        return self

    def _put(self, char: str) -> None:
        if self.column == self.width:
            self._down()
            self.column = 0
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + char + line[self.column + 1 :]
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def _control(self, number: str, what: str) -> None:
        if what == "A":
            self.row = max(self.row - int(number or 1), len(self.rows) - self.height, 0)
        elif what == "H" and not number:
            self.row, self.column = max(len(self.rows) - self.height, 0), 0
        elif what == "K" and number in ("", "2"):
            self.rows[self.row] = self.rows[self.row][: 0 if number else self.column]
        elif what == "J" and not number:
            self.rows[self.row] = self.rows[self.row][: self.column]
            self.rows[self.row + 1 :] = []
        elif what != "m":
            raise AssertionError(f"a sequence that is not ours: ESC [ {number}{what}")

    def lines(self) -> list[str]:
        """All of them, blanks at their ends left out."""
        return [row.rstrip() for row in self.rows]


class Reader:
    """Reads a pty in a thread, as a terminal emulator does; `text` is all that has come."""

    def __init__(self, master: IO[bytes]) -> None:
        self._master = master
        self._bytes = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := self._master.read(65536):
                self._bytes += data
        except OSError:  # the last writer has closed the other end
            return

    @property
    def text(self) -> str:
        """The terminal's own carriage returns taken out again."""
        return bytes(self._bytes).decode(errors="replace").replace("\r\n", "\n")
