"""Columns of a grid: a worker that enters one looks at the words of the others."""

import threading

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels.compiling import kernel
from hogwild.kernels.fused import STAMP_BITS
from hogwild.kernels.matrix_factorization import enter
from hogwild.shared_memory.scoreboard import Scoreboard, Word
from tests.helpers.processes import PATIENCE_S, wait_for

MINE, YOURS = 5 << STAMP_BITS, 6 << STAMP_BITS


def words_of(**others: int) -> np.ndarray:
    """Return the words of three workers, of which the first is in a column that it leaves, and of the control row."""
    words = Scoreboard.allocate(3).words[:, Word.COLUMN]
    words[:] = [MINE | 9, others.get("second", 0), others.get("third", 0), 0]
    return words


NOBODY = np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("others", "is_free"),
    [
        ({}, True),
        ({"third": YOURS | 4}, False),
        ({"second": YOURS | 3, "third": YOURS | 5}, True),
        ({"second": 1 << 40 | 4}, False),
        ({"second": YOURS | 1 << STAMP_BITS - 1 | 4}, True),  # no bit of the column is left out
    ],
)
def test_a_column_is_entered_if_nobody_else_is_there(others: dict[str, int], is_free: bool) -> None:
    words = words_of(**others)
    assert enter(words, NOBODY, 0, MINE, 3, False) == (is_free, not is_free)
    assert words[0] == (MINE | 4 if is_free else 0), "whoever waits is in no column"
    assert words[1:].tolist() == [*(others.get(name, 0) for name in ("second", "third")), 0]


def test_whoever_insists_enters_in_any_case_and_hears_whether_it_had_to() -> None:
    words = words_of(second=YOURS | 4)
    assert enter(words, NOBODY, 0, MINE, 3, True) == (True, True)
    assert words[0] == MINE | 4
    assert enter(words, NOBODY, 0, MINE, 4, True) == (True, False)


def test_a_word_that_is_ignored_counts_as_absence_until_it_changes() -> None:
    words, ignored = words_of(second=YOURS | 4), NOBODY.copy()
    ignored[1] = YOURS | 4
    assert enter(words, ignored, 0, MINE, 3, False)[0]
    words[1] = YOURS + (1 << STAMP_BITS) | 4
    assert not enter(words, ignored, 0, MINE, 3, False)[0]


@kernel
def _until_entered(words, ignored, looked):  # type: ignore[no-untyped-def]
    for look in range(1_000_000):
        looked[0] = look
        if enter(words, ignored, 0, 0, 3, False)[0]:
            return look
    return -1


def test_a_word_is_read_anew_at_every_look() -> None:
    words, looks, looked = words_of(second=YOURS | 4), [], np.zeros(1, np.int64)
    looker = threading.Thread(target=lambda: looks.append(_until_entered(words, NOBODY, looked)), daemon=True)
    _until_entered(words_of(), NOBODY, looked)  # compiled
    looker.start()
    wait_for("a look in vain", lambda: looked[0] > 0)
    words[1] = 0
    looker.join(PATIENCE_S)
    assert looks and looks[0] > 0
