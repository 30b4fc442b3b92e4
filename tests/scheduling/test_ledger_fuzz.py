"""The ledger under random events, by seed (tests/faults/ledger.py). `make stress` goes on from there."""

import pytest

from tests.faults.ledger import fuzz

pytestmark = pytest.mark.slow

RUNS = 2_000
AT_ONCE = 250


@pytest.mark.parametrize("first", range(0, RUNS, AT_ONCE))
def test_whatever_happens_each_batch_is_settled_once_and_the_job_comes_to_its_end(first: int) -> None:
    bad = {seed: words for seed in range(first, first + AT_ONCE) if (words := fuzz(seed)) is not None}
    assert not bad


def test_a_rollback_to_a_checkpoint_from_before_the_data_was_streamed_finds_no_slot_filled() -> None:
    """The one in 100,000 runs that found it."""
    assert fuzz(82837) is None
