"""Columns of a grid: a worker that enters one looks at the words of the others."""

import threading

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels.compiling import kernel
from hogwild.kernels.matrix_factorization import enter
from hogwild.shared_memory.scoreboard import Scoreboard, Word
from tests.helpers.processes import PATIENCE_S, wait_for


def words_of(**others: int) -> np.ndarray:
    """Return the words of three workers, of which the first is in a column that it leaves, and of the control row."""
    words = Scoreboard.allocate(3).words[:, Word.COLUMN]
    words[:] = [9, others.get("second", 0), others.get("third", 0), 0]
    return words


@pytest.mark.parametrize(
    ("others", "is_free"),
    [({}, True), ({"third": 4}, False), ({"second": 3, "third": 5}, True), ({"second": 1 << 40 | 4}, True)],
)
def test_a_column_is_entered_if_nobody_else_is_there_or_by_a_worker_that_insists(
    others: dict[str, int], is_free: bool
) -> None:
    words = words_of(**others)
    assert enter(words, 0, 3, False) == is_free
    assert words[0] == (4 if is_free else 0), "a worker that was not let in is in no column"
    assert enter(words, 0, 3, True) and words[0] == 4
    assert words[1:].tolist() == [*(others.get(name, 0) for name in ("second", "third")), 0]


@kernel
def _until_entered(words, looked):  # type: ignore[no-untyped-def]
    for look in range(1_000_000):
        looked[0] = look
        if enter(words, 0, 3, False):
            return look
    return -1


def test_a_word_is_read_anew_at_every_look() -> None:
    words, looks, looked = words_of(second=4), [], np.zeros(1, np.int64)
    looker = threading.Thread(target=lambda: looks.append(_until_entered(words, looked)), daemon=True)
    _until_entered(words_of(), looked)  # compiled
    looker.start()
    wait_for("a look in vain", lambda: looked[0] > 0)
    words[1] = 0
    looker.join(PATIENCE_S)
    assert looks and looks[0] > 0
