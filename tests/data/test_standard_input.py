"""Kept standard input as a followed file: files of several attempts, and the three kinds of an end."""

from pathlib import Path

import pytest

from hogwild.data import Follow
from hogwild.data import standard_input as module
from hogwild.data.followed_file import Ended, FilePlace, KeptInput, Lines
from hogwild.data.standard_input import END, kept_file
from hogwild.errors import DataError, UsageError
from hogwild.storage import files


def read(kept: KeptInput) -> list[bytes]:
    """Return the contents up to the first that is none."""
    found = []
    while isinstance(lines := kept.read(), Lines):
        found.append(lines.content)
    return found


def test_the_files_of_all_attempts_are_read_in_order_also_past_an_empty_one(tmp_path: Path) -> None:
    contents = [b"a\nb\n", b"", b"c\n", b""]
    for attempt, content in enumerate(contents, 1):
        kept_file(tmp_path, attempt).write_bytes(content)
    kept = KeptInput(tmp_path)
    assert read(kept) == [b"a\nb\n", b"c\n"]
    assert kept.read() is None, "more may come"
    with open(kept_file(tmp_path, 4), "ab") as file:
        file.write(b"d\n")
    (tmp_path / END).touch()
    assert read(kept) == [b"d\n"] and kept.read() is Ended


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_a_place_in_any_attempt_goes_on_from_there(attempt: int, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        kept_file(tmp_path, number).write_bytes(b"%d\n" % number)
    (tmp_path / END).touch()
    first = KeptInput(tmp_path)
    for _ in range(attempt):
        first.read()
    again = KeptInput(tmp_path)
    again.go_to(FilePlace(**first.place.state()))
    assert read(again) == [b"%d\n" % number for number in range(attempt + 1, 4)]


def test_an_input_that_broke_off_is_an_error_after_its_lines(tmp_path: Path) -> None:
    kept_file(tmp_path, 1).write_bytes(b"a\nhal")
    (tmp_path / END).write_text("cannot be read: Input/output error")
    kept = KeptInput(tmp_path)
    with pytest.raises(DataError, match="Input/output error"):
        read(kept)
    assert kept.place.line == 1


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"", b""),
        (b"a\n", b"a\n"),
        (b"a\nb", b"a\n"),
        (b"ab", b""),
        (b"a\n" + b"b" * 40, b"a\n"),
        (b"\n\nabc", b"\n\n"),
    ],
)
def test_half_of_a_last_line_is_cut(
    content: bytes, left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 3)
    file = kept_file(tmp_path, 1)
    file.write_bytes(content)
    module._cut_half_line(file)
    assert file.read_bytes() == left


def test_only_the_command_keeps_standard_input() -> None:
    with pytest.raises(UsageError, match="only `hogwild train` reads"):
        iter(Follow("-"))
