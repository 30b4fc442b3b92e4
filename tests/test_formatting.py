"""Sizes, durations and counts as people read them, and names that are nearly right."""

import pytest

from hogwild.errors import did_you_mean, nearest, shown_name
from hogwild.formatting import clock, counted, duration, in_one_line, short_number, size


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (28.2 * 2**20, "28 MiB"), (9.94 * 2**20, "9.9 MiB"),
        (9.96 * 2**20, "10 MiB"), (999.4 * 2**20, "999 MiB"), (999.9 * 2**20, "1.0 GiB"), (1.5 * 2**30, "1.5 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_three_digits_at_most_below_the_largest_unit(nbytes: float, words: str) -> None:
    assert size(nbytes) == words


@pytest.mark.parametrize(
    ("seconds", "words", "shown"),
    [(0.04, "0.0 s", "0:00:00"), (59.9, "59.9 s", "0:00:59"), (287, "4 min 47 s", "0:04:47"),
     (7260, "2 h 01 min", "2:01:00"), (183600, "2 d 3 h", "2d 3:00:00")],
)  # fmt: skip
def test_a_duration_in_words_and_as_a_clock(seconds: float, words: str, shown: str) -> None:
    assert (duration(seconds), clock(seconds)) == (words, shown)


def test_counts_have_their_plural_and_large_numbers_their_unit() -> None:
    assert [counted(count, "worker") for count in (1, 2, 1234)] == ["1 worker", "2 workers", "1,234 workers"]
    assert [short_number(value) for value in (1.5, 1234, 12_345_678)] == ["1.5", "1,234", "12.3 M"]


def test_a_name_that_is_nearly_right_is_suggested_and_nothing_else() -> None:
    assert did_you_mean("trian", ["train", "check"]) == "; did you mean 'train'?"
    assert did_you_mean("zebra", ["train", "check"]) == ""
    assert nearest("conv", ["conv1", "conv2", "linear"], most=2) == ["conv2", "conv1"]
    many = [f"user-{number}" for number in range(100_000, 200_000)]
    for wrong in ("usr-123456", "user-1234567", "User-123456", "user123456", "suer-123456", "user-12345X"):
        assert nearest(wrong, many)[0].startswith("user-12345"), wrong
    assert did_you_mean("x" * 10_000, many) == "" and len(shown_name("\n" * 10_000)) < 300
    assert len(did_you_mean("x" * 99, ["x" * 100 + "y" * 3])) < 130


def test_lines_become_one_with_a_mark_between_two_sentences() -> None:
    assert in_one_line("the data has changed:\n  names: other\n\n  rows: 3.\nRestore it\n") == (
        "the data has changed: names: other; rows: 3. Restore it"
    )
    assert in_one_line("") == "" and in_one_line("12:00  one") == "12:00  one"
