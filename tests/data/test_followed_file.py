"""Lines of a file that grows, is rotated, truncated or replaced, against a plain list of what was written."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.data import followed_file
from hogwild.data.followed_file import TAIL, Ended, FilePlace, FollowedFile
from hogwild.errors import DataError


def read_all(file: FollowedFile) -> list[bytes]:
    """Return the lines that are there, without their ends."""
    found: list[bytes] = []
    while isinstance(lines := file.read(), followed_file.Lines):
        found += lines.content.removesuffix(b"\n").split(b"\n")
    return found


class Writer:
    """Appends to a file and rotates it: NAME.1 is the last one before, NAME.2 the one before that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[bytes] = []  # all that were written, with a line end
        self.half = b""

    def append(self, content: bytes) -> None:
        with open(self.path, "ab") as file:
            file.write(content)
        *whole, self.half = (self.half + content).split(b"\n")
        self.lines += whole

    def rotate(self) -> None:
        if self.half:
            self.append(b"\n")
        if not self.path.exists():
            return
        for number in range(20, 0, -1):
            before = self.path.with_name(f"{self.path.name}.{number}")
            if before.exists():
                before.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))


line = st.text("ab\r é", max_size=12).map(str.encode)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(line, max_size=5), line),
    st.tuples(st.just("rotate")),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("resume"), st.integers(0, 100)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=30), st.integers(1, 40))
def test_every_line_is_read_once_from_wherever_one_goes_on(todo: list[Any], block: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_file, "BLOCK", block)
        patch.setattr(followed_file, "TAIL", 5)
        writer = Writer(Path(folder) / "log")
        writer.append(b"0\n")
        file, read = FollowedFile(writer.path), 0
        places = list[tuple[FilePlace, int]]()

        def take(most: int) -> None:
            nonlocal read
            for _ in range(most):
                if not isinstance(lines := file.read(), followed_file.Lines):
                    return
                end = 0
                places.append((lines.place(0, 0), read))
                for number, one in enumerate(lines.content.removesuffix(b"\n").split(b"\n")):
                    assert one == writer.lines[read]
                    read, end = read + 1, end + len(one) + 1
                    places.append((lines.place(end, number + 1), read))
                assert places[-1][0] == file.place

        take(1)  # reading begins with the file that is there
        for step in todo:
            if step[0] == "append":
                writer.append(b"".join(one + b"\n" for one in step[1]) + step[2])
            elif step[0] == "rotate":
                writer.rotate()
            elif step[0] == "read":
                take(step[1])
            else:
                place, read = places[step[1] % len(places)]
                file = FollowedFile(writer.path)
                file.go_to(place)
        if writer.path.exists():  # else nothing says that the last file was rotated for good
            writer.append(b"\n")
            take(1000)
            assert read == len(writer.lines)


def truncate(path: Path) -> None:
    os.truncate(path, 4)


def overwrite(path: Path) -> None:
    """As long as before, and then longer."""
    content = path.read_bytes()
    path.write_bytes(content.upper() + b"more\n")


def copy_and_truncate(path: Path) -> None:
    path.with_name("log.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    path.write_bytes(b"new\n" * 20)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + b"more\n")
    other.rename(path)


def remove(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"new\n")


def leave_half(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"half")
    path.rename(path.with_name("log.1"))
    path.write_bytes(b"new\n")


def pack(path: Path) -> None:
    """Two rotations at once; the first of them is packed already."""
    path.rename(path.with_name("log.2"))
    between = path.with_name("log.1.gz")
    between.write_bytes(b"\x1f\x8b...")
    os.utime(between, ns=(0, path.with_name("log.2").stat().st_mtime_ns + 1))
    path.write_bytes(b"new\n")


GAPS: dict[str, tuple[Callable[[Path], None], str, list[bytes]]] = {
    "truncated": (truncate, "was truncated or overwritten after line 2 was read: it has 4 bytes, and 8", [b"one"]),
    "overwritten": (overwrite, "other bytes stand before that", [b"ONE", b"TWO", b"more"]),
    "copied and truncated": (copy_and_truncate, "other bytes stand before that", [b"new"] * 20),
    "replaced": (replace, "replaced by another file", [b"one", b"two", b"more"]),
    "removed": (remove, "was removed", [b"new"]),
    "rotated with half a line": (leave_half, "line 3 of the file before, 'half', has no line end", [b"new"]),
    "packed": (pack, "log.1.gz was packed before it was read", [b"new"]),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_where_lines_may_be_missing_it_fails_or_goes_on_with_a_warning(
    name: str, is_resumed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, words, rest = GAPS[name]
    path = tmp_path / "log"
    for on_gap in ("fail", "go_on"):
        for one in tmp_path.iterdir():
            one.unlink()
        path.write_bytes(b"one\ntwo\n")
        file = FollowedFile(path, on_gap=on_gap)
        assert read_all(file) == [b"one", b"two"]
        place = file.place
        change(path)
        if is_resumed:
            file = FollowedFile(path, on_gap=on_gap)

        def go_on(file: FollowedFile = file, place: FilePlace = place) -> list[bytes]:
            if is_resumed:
                file.go_to(place)
            return read_all(file)

        said = "is not in its folder any more" if is_resumed and name in ("replaced", "removed") else words
        if on_gap == "fail":
            with pytest.raises(DataError) as error:
                go_on()
            assert said in str(error.value) and str(path) in str(error.value) and error.value.code == "data/gap"
        else:
            caplog.clear()
            assert go_on() == rest
            assert said in caplog.text


def test_a_line_that_comes_too_late_for_its_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    file = FollowedFile(path)
    assert read_all(file) == [b"one"]
    late = open(path, "ab")  # noqa: SIM115
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"two\n")
    assert read_all(file) == [b"two"]
    late.write(b"late\n")
    late.close()
    with pytest.raises(DataError, match="appended to the file before"):
        file.read()


def test_the_old_file_is_read_to_its_end_before_the_next_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    file = FollowedFile(path)
    assert read_all(file) == [b"one"]
    with open(path, "ab") as old:
        path.rename(tmp_path / "log.1")
        assert read_all(file) == []
        path.touch()
        old.write(b"two\n")
        old.flush()
        assert read_all(file) == [b"two"]
        old.write(b"three\n")
    path.write_bytes(b"four\n")
    assert read_all(file) == [b"three", b"four"]


@pytest.mark.parametrize("names", [["log.3", "log.2", "log.1"], ["log-20260130", "log-20260131", "log-20260201.txt"]])
def test_files_of_one_moment_are_read_in_the_order_of_their_names(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0\n")
    file = FollowedFile(path)
    assert read_all(file) == [b"0"]
    places = [file.place]
    for number, name in enumerate([*names, "log"]):
        if number:
            (tmp_path / name).write_bytes(b"%d\n" % number)
        else:
            path.rename(tmp_path / name)
    (tmp_path / "log.bak").write_bytes(b"a copy\n")
    for one in tmp_path.iterdir():
        os.utime(one, ns=(10**18, 10**18))
    while isinstance(lines := file.read(), followed_file.Lines):
        assert lines.content == b"%d\n" % len(places)
        places.append(file.place)
    assert len(places) == 4
    for number, place in enumerate(places):
        again = FollowedFile(path)
        again.go_to(place)
        assert read_all(again) == [b"%d" % rest for rest in range(number + 1, 4)]


def test_a_line_that_comes_while_the_next_file_is_looked_for_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = tmp_path / "log", FollowedFile._following
    path.write_bytes(b"one\n")
    file = FollowedFile(path)
    assert read_all(file) == [b"one"]
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"three\n")
    late = [b"two\n"]

    def racing(self: FollowedFile) -> Any:
        found = look(self)
        if late:
            with open(tmp_path / "log.1", "ab") as old:
                old.write(late.pop())
        return found

    monkeypatch.setattr(FollowedFile, "_following", racing)
    assert read_all(file) == [b"two", b"three"]


def test_until_the_end_the_last_line_needs_no_end_but_must_not_be_completed_then(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    file = FollowedFile(path, until="end")
    lines = file.read()
    assert isinstance(lines, followed_file.Lines) and lines.content == b"one\r\n" and lines.begin == 3
    again = FollowedFile(path, until="end")
    again.go_to(lines.place(5, 1))
    assert read_all(again) == [b"two"] and again.read() is Ended
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo and more\n")
    with pytest.raises(DataError, match="its last line was read without a line end"):
        FollowedFile(path).go_to(again.place)


def test_a_line_may_be_long_and_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file, long = FollowedFile(path), b"x" * 10_000_000
    assert file.read() is None, "there is no file yet"
    with open(path, "ab", buffering=0) as more:
        for begin in range(0, len(long), 3_000_000):
            more.write(long[begin : begin + 3_000_000])
            assert file.read() is None
        more.write(b"\nshort\n")
    assert read_all(file) == [long, b"short"]


def test_a_line_without_an_end_is_refused_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_file, "BLOCK", 16)
    monkeypatch.setattr(followed_file, "LONGEST", 1000)
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * 2000)
    file = FollowedFile(path)
    assert isinstance(file.read(), followed_file.Lines)
    with pytest.raises(DataError, match="line 2: is longer than"):
        file.read()


@pytest.mark.parametrize("kind", ["folder", "fifo", "no permission", "gzip", "UTF-16"])
def test_what_cannot_be_followed_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    words = {"folder": "is a folder", "fifo": "is a FIFO", "gzip": "packed by gzip", "UTF-16": "UTF-16"}
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "no permission":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        path.touch(0o000)
    else:
        path.write_bytes(b"\x1f\x8b\x08.........\n" if kind == "gzip" else "a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(DataError, match=words.get(kind, "cannot be read")):
        FollowedFile(path).read()


def test_a_state_keeps_its_size(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "log"
    path.write_bytes(b"x" * 3 * TAIL + b"\n")
    file = FollowedFile(path)
    first = len(pickle.dumps(file.place.state()))
    assert isinstance(file.read(), followed_file.Lines)
    assert len(pickle.dumps(file.place.state())) < 2 * first
