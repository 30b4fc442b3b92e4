"""A text file that others append to, as whole lines in order, each once. No waiting and no parsing here.

    read() ──► Lines      the next whole lines
           ──► None       nothing yet: no new line, or no file
           ──► Ended      `until: end`: all is read

    appended            a line counts once its line end is there
    renamed (rotated)   the old file is read to its end; then those renamed after it; then the file at the path
    truncated, overwritten, deleted before it was read, or its last line cut off: a gap

A gap is an error, or, by choice, a warning, and reading goes on with the file that is at the path now. A `FilePlace`
tells where the next line begins and what stands before it, so that a file whose content was replaced is noticed."""

import contextlib
import hashlib
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hogwild.data.locate import reading
from hogwild.data.standard_input import END, kept_file, kept_files
from hogwild.data.text_file import HEAD, MARK, PACKED, refuse_other_kind, refuse_packed
from hogwild.data.text_parsing import shown
from hogwild.errors import DataError
from hogwild.formatting import size

BLOCK = 1 << 20  # bytes read at once, if no line is longer: an id is hashed once in each
TAIL = 1 << 10  # bytes before a place that are compared
LONGEST = 64 << 20  # bytes of a line
ROTATED = re.compile(r"[.-](\d[\d.T:_-]*)(\.\w+)?")  # behind the name: .1, -20260131, .2.gz
log = logging.getLogger(__name__)

Identity = tuple[int, int]  # device and inode; (0, 0): no file yet


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The beginning of a line in a file. `line`: lines before it; `tail`: a hash of the last bytes before it."""

    device: int = 0
    inode: int = 0
    offset: int = 0
    line: int = 0
    tail: bytes = bytes(16)

    def state(self) -> dict[str, Any]:
        """Return it as plain values of a constant size."""
        return {name: getattr(self, name) for name in self.__slots__}  # `asdict` is ten times as slow


def _hash_of_tail(tail: bytes) -> bytes:
    return hashlib.blake2b(tail[-TAIL:], digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of the file `identity`: from byte `begin` on, with `line` lines before them, and the bytes before
    (at most TAIL). Only the last line of a file, with `until: end`, may lack its line end."""

    content: bytes
    identity: Identity
    begin: int
    line: int
    before: bytes

    def place(self, end: int, lines: int) -> FilePlace:
        """Return the place behind the first `lines` lines, which end at byte `end` of the content."""
        before = self.before + self.content[max(0, end - TAIL) : end]
        return FilePlace(*self.identity, self.begin + end, self.line + lines, _hash_of_tail(before))


class Ended:
    """Everything is read."""


class FollowedFile:
    """The file at `path`. `until`: `end`, or `stop`: never; `on_gap`: `fail`, or `go_on`. For one process, unpicklable
    once something was read.

    Raises DataError, with a code of its own for a gap, for what is not a text file, or cannot be read."""

    def __init__(self, path: Path, until: Literal["stop", "end"] = "stop", on_gap: str = "fail") -> None:
        self.path, self._until, self._on_gap = path, until, on_gap
        self._file = -1
        self._identity: Identity = 0, 0
        self._at = self._line = 0
        self._before = b""
        self._half = 0  # bytes behind the last line end that were seen
        self._written = 0  # time of the last write that was seen
        self._former: tuple[int, int] | None = None  # descriptor and size of the file before, to see a late line
        self._told = set[str]()

    @property
    def place(self) -> FilePlace:
        return FilePlace(*self._identity, self._at, self._line, _hash_of_tail(self._before))

    def beginning(self, most: int) -> bytes:
        """Return the first bytes of the present file, at most so many."""
        with reading(self.path):
            return os.pread(self._file, most, 0)

    def place_of(self, state: Mapping[str, Any]) -> FilePlace:
        """Return the place that has this state."""
        return FilePlace(**state)

    def go_to(self, place: FilePlace) -> None:
        """Go on from a place, also in a file that has been renamed since."""
        self.close()
        if place.inode == 0:
            return
        identity = place.device, place.inode
        while self._file < 0:  # again if it is renamed meanwhile
            named = next((path for path, found in self._siblings() if _identity(found) == identity), None)
            if named is None:
                self._gap(
                    f"the file that was read up to line {place.line:,} is not in its folder any more: it was removed, "
                    "packed or moved away, perhaps with lines that nobody has read"
                )
                return
            self._open(named, identity)
        now = os.fstat(self._file).st_size
        before = os.pread(self._file, min(TAIL, place.offset), max(0, place.offset - TAIL))
        if now < place.offset or _hash_of_tail(before) != place.tail:
            self._changed(place.offset, place.line, now)
        elif before and before[-1:] != b"\n" and now > place.offset:
            self._gap("its last line was read without a line end (until: end), and then completed")
        else:
            self._at, self._line, self._before = place.offset, place.line, before

    def read(self) -> "Lines | type[Ended] | None":
        """Return the next whole lines, None if there are none yet, or `Ended`."""
        with reading(self.path):
            while True:
                if self._file < 0 and not self._open(self.path):
                    if self._until == "end":
                        raise FileNotFoundError(2, "No such file or directory")
                    self._tell(f"{self.path}: is not there yet; waiting for it")
                    return None
                content = self._new_bytes()
                if content is None:
                    continue  # after a gap
                if end := content.rfind(b"\n") + 1:
                    return self._taken(content[:end])
                if (found := self._at_the_end()) is not True:
                    return found

    def close(self) -> None:
        """Close the file: the next read begins with that at the path."""
        self._close_former()
        if self._file >= 0:
            os.close(self._file)
        self._begin(-1, (0, 0))

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    # ---- reading

    def _open(self, path: Path, identity: Identity | None = None) -> bool:
        """Open the file, and close the former one's predecessor; return False if it is not there, or not the file of
        this `identity`. Raises DataError for what cannot be followed."""
        try:
            kind = os.stat(path).st_mode  # before opening it: to open a FIFO waits for a writer
            refuse_other_than_file(self.path, kind)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        found = _identity(os.fstat(file))
        if identity is not None and found != identity:
            os.close(file)
            return False
        if self._file >= 0:
            self._close_former()
            self._former = self._file, os.fstat(self._file).st_size
        self._begin(file, found)
        return True

    def _begin(self, file: int, identity: Identity) -> None:
        """Stand at the beginning of an open file; -1: of none."""
        self._file, self._identity = file, identity
        self._at = self._line = self._half = self._written = 0
        self._before = b""

    def _close_former(self) -> None:
        if self._former is not None:
            os.close(self._former[0])
        self._former = None

    def _new_bytes(self) -> bytes | None:
        """Return the bytes behind the last line that was read, up to the end of the file or a block with a line end;
        None after a gap."""
        found = os.fstat(self._file)
        if found.st_size < self._at:
            self._changed(self._at, self._line, found.st_size)
            return None
        if found.st_size == self._at + self._half and found.st_mtime_ns == self._written:
            return b""
        self._written = found.st_mtime_ns
        wanted = max(BLOCK, 2 * self._half)
        while True:
            begin = self._at - len(self._before)
            content = os.pread(self._file, len(self._before) + wanted, begin)
            if not content.startswith(self._before):
                self._changed(self._at, self._line, os.fstat(self._file).st_size)
                return None
            content = content[len(self._before) :]
            if len(content) < wanted or b"\n" in content:
                break
            if len(content) >= LONGEST:
                raise DataError(
                    f"{self.path}: line {self._line + 1:,}: is longer than {size(LONGEST)}; lines end with \\n",
                    code="data/bad-line",
                )
            wanted *= 2
        if self._at == 0:
            refuse_packed(self.path, content)
            refuse_other_kind(self.path, content[:HEAD], "text")
        self._half = len(content) - (content.rfind(b"\n") + 1)
        return content

    def _taken(self, content: bytes) -> Lines:
        mark = len(MARK) if self._at == 0 and content.startswith(MARK) else 0
        before = (self._before + content[:mark])[-TAIL:]
        lines = Lines(content[mark:], self._identity, self._at + mark, self._line, before)
        self._at += len(content)
        self._line += content.count(b"\n")
        self._before = (self._before + content[-TAIL:])[-TAIL:]
        return lines

    def _at_the_end(self) -> "Lines | type[Ended] | Literal[True] | None":
        """Return what `read` does at the end of the present file; True: read again."""
        self._look_for_late_lines()
        following = self._following()
        if following is None and (self._until == "stop" or not self._half):
            return Ended if self._until == "end" else None
        half = os.pread(self._file, self._half, self._at)
        if following is None:
            self._half = 0
            return self._taken(half)
        if os.fstat(self._file).st_size > self._at + len(half):
            return True  # appended before the next file was begun
        if os.fstat(self._file).st_nlink == 0:
            self._gap("was removed, or replaced by another file, which was read up to its end and was not renamed")
            return True
        if half:
            self._gap(
                f"line {self._line + 1:,} of the file before, {shown(half)!r}, has no line end, and the next file is "
                "begun",
                begins_anew=False,
            )
        self._open(*following)
        return True

    def _look_for_late_lines(self) -> None:
        if self._former is None:
            return
        descriptor, was = self._former
        if os.fstat(descriptor).st_size != was:
            self._former = descriptor, os.fstat(descriptor).st_size
            self._gap(
                "lines were appended to the file before, after the next one had its first line: its writers must all "
                "have opened the new file by then",
                begins_anew=False,
            )

    # ---- files

    def _following(self) -> tuple[Path, Identity] | None:
        """Return the file after the present one; None if there is none yet, or if it has no line."""
        try:
            current = os.stat(self.path)
        except FileNotFoundError:
            return None
        if _identity(current) == self._identity or current.st_size == 0:
            return None
        own, own_age = os.fstat(self._file).st_mtime_ns, (0.0, "")
        found = list[tuple[int, float, str, Path, Identity]]()
        for path, kind in self._siblings():
            suffix = path.name.removeprefix(self.path.name)
            if suffix == path.name or not ROTATED.fullmatch(suffix):
                continue
            if _identity(kind) == self._identity:
                own_age = _age(suffix)
            elif _identity(kind) != _identity(current) and kind.st_size:
                found.append((kind.st_mtime_ns, *_age(suffix), path, _identity(kind)))
        later = [one for one in found if one[:3] > (own, *own_age)]
        if not later:
            return self.path, _identity(current)
        *_, path, identity = min(later)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            head = file.read(8)
            if any(head.startswith(sign) for sign in PACKED):
                self._gap(f"{path.name} was packed before it was read", begins_anew=False)
                return self.path, _identity(current)
        return path, identity

    def _siblings(self) -> list[tuple[Path, os.stat_result]]:
        """Return the regular files of the folder, whatever their names are."""
        found = []
        with reading(self.path.parent), os.scandir(self.path.parent) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    if stat.S_ISREG((kind := os.stat(entry.path)).st_mode):
                        found.append((Path(entry.path), kind))
        return found

    def _changed(self, offset: int, line: int, now: int) -> None:
        what = f"it has {now:,} bytes, and {offset:,} were read" if now < offset else "other bytes stand before that"
        self._gap(f"was truncated or overwritten after line {line:,} was read: {what}")

    def _gap(self, why: str, *, begins_anew: bool = True) -> None:
        """Fail, or warn and, if `begins_anew`, go on with the beginning of the file that is at the path now."""
        if self._on_gap == "fail":
            raise DataError(
                f"{self.path}: {why}. Lines may be missing; on_gap: go_on goes on with what is there", code="data/gap"
            )
        log.warning("%s: %s; going on with what is there (on_gap: go_on)", self.path, why)
        if begins_anew:
            self.close()

    def _tell(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            log.warning(words)


class KeptInput(FollowedFile):
    """Kept standard input (`standard_input.py`): the files of all attempts in order, and the end of the input as
    the end. `folder`: of these files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__(kept_file(folder, 1))

    def read(self) -> "Lines | type[Ended] | None":
        end = self._end()  # before the lines: all of them are there then
        found = super().read()
        if found is not None or end is None:
            return found
        if end:
            raise DataError(f"standard input: {end}", code="data/unreadable")
        return Ended

    def close(self) -> None:
        super().close()
        self.path = kept_file(self._folder, 1)

    def _open(self, path: Path, identity: Identity | None = None) -> bool:
        self.path = path
        return super()._open(path, identity)

    def _following(self) -> tuple[Path, Identity] | None:
        later = [path for path in kept_files(self._folder) if path.name > self.path.name]
        return (later[0], _identity(os.stat(later[0]))) if later else None

    def _end(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / END).read_text()
        return None


def refuse_other_than_file(path: Path, mode: int) -> None:
    """Raise DataError for a folder, a FIFO, a device or a socket."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise DataError(f"{path}: is a folder; name the file in it that grows", code="data/unreadable")
    kinds = {"FIFO": stat.S_ISFIFO, "socket": stat.S_ISSOCK, "device": stat.S_ISCHR}
    kind = next((name for name, is_it in kinds.items() if is_it(mode)), "special file")
    raise DataError(
        f"{path}: is a {kind}, which can be read only once, so a process that is killed would lose its lines; append "
        f"to a file and follow that (cat {path} >> lines.jsonl)",
        code="data/unreadable",
    )


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _age(suffix: str) -> tuple[float, str]:
    """Return the order of rotated files that were written at one time: .2 is older than .1, dates ascend."""
    number = suffix[1:].partition(".")[0]
    return (-float(number), "") if number.isdigit() and len(number) < 5 else (0.0, suffix)
