"""The memory of a job's processes: torch is imported once for all, or once for each."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hogwild.planning.cpu_plan import MIB, ProcessMemory

MEASURED = ProcessMemory(import_private=150 * MIB, import_shared=80 * MIB, fork_private=9 * MIB)


@pytest.mark.parametrize(
    ("procs", "is_forked", "words"),
    [
        (16, True, "374 MiB: the fork server 230 MiB, each of 16 workers 9.0 MiB"),
        (1, False, "230 MiB: shared 80 MiB, each of 1 worker, a fresh interpreter, 150 MiB"),
        (0, True, "none: it trains in the command's own process"),
    ],
)
def test_an_import_counts_once_where_processes_are_forked(procs: int, is_forked: bool, words: str) -> None:
    assert MEASURED.words(procs, is_forked=is_forked) == words


@given(procs=some.integers(1, 512))
def test_a_further_worker_is_a_fork_or_an_import(procs: int) -> None:
    forked, fresh = (MEASURED.of(procs + 1, is_forked=one) - MEASURED.of(procs, is_forked=one) for one in (True, False))
    assert (forked, fresh) == (9 * MIB, 150 * MIB)
    assert MEASURED.further(procs, is_forked=True) == MEASURED.of(procs, is_forked=True) - 230 * MIB
    assert MEASURED.of(procs, is_forked=True) >= MEASURED.of(1, is_forked=False)


def test_without_a_measurement_the_usual_figures_hold() -> None:
    assert ProcessMemory.measured({"why": "it died"}) == ProcessMemory()
    assert ProcessMemory.measured({"import_private": 1, "import_shared": 2, "fork_private": 3, "fork_s": 0.1}) == (
        ProcessMemory(1, 2, 3)
    )
