"""procs x threads: the rules as a table."""

import pytest

from hogwild.errors import UsageError
from hogwild.host import Cores
from hogwild.plan import VARIABLES, make_plan


def cores(usable: float) -> Cores:
    return Cores(int(usable) or 1, usable, usable, "of a test")


@pytest.mark.parametrize(
    ("procs", "threads", "usable", "environ", "expected"),
    [
        ("auto", "auto", 4, {}, (4, 1)),
        ("auto", "auto", 1.5, {}, (1, 1)),
        ("auto", "auto", 0.5, {}, (1, 1)),
        (2, "auto", 8, {}, (2, 4)),
        (3, "auto", 8, {}, (3, 2)),
        (4, "auto", 2, {}, (4, 1)),
        (2, "auto", 7.9, {}, (2, 3)),
        (0, "auto", 8, {}, (0, 8)),
        (2, 3, 4, {"OMP_NUM_THREADS": "7"}, (2, 3)),
        (2, 3, 4, {"OMP_NUM_THREADS": "abc"}, (2, 3)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "2"}, (2, 2)),
        (2, "auto", 8, {"OMP_NUM_THREADS": " 3 "}, (2, 3)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "4,2"}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "1"}, (2, 1)),
        (2, "auto", 8, {"OMP_NUM_THREADS": ""}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, (2, 4)),
        (2, "auto", 8, {"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, (2, 2)),
        (2, "auto", 8, {"MKL_NUM_THREADS": "5"}, (2, 4)),
    ],
)
def test_procs_and_threads_follow_the_rules(procs, threads, usable, environ, expected) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(procs, threads, cores=cores(usable), environ=environ)
    assert (plan.procs, plan.threads) == expected
    assert plan.environment == dict.fromkeys(VARIABLES, str(expected[1]))


@pytest.mark.parametrize("value", ["abc", "0", "-1", "2.5", "4,", "4,x", "1e1", "²"])
def test_a_thread_count_that_is_none_names_the_variable_and_the_value(value: str) -> None:
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS={value}: "):
        make_plan(1, "auto", cores=cores(4), environ={"OMP_NUM_THREADS": value})


def test_the_reason_says_where_each_number_comes_from() -> None:
    assert "OMP_NUM_THREADS is set" in make_plan(1, "auto", cores=cores(4), environ={"OMP_NUM_THREADS": "2"}).reason
    assert "8 usable cores / 2" in make_plan(2, "auto", cores=cores(8), environ={}).reason
    assert "as given" in make_plan(1, 2, cores=cores(8), environ={}).reason
    by_torchrun = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}
    assert "torchrun" in make_plan(2, "auto", cores=cores(8), environ=by_torchrun).reason


@pytest.mark.parametrize(
    ("procs", "threads", "usable", "words"),
    [
        (4, "auto", 2, "4 workers share 2 usable cores"),
        (2, 2, 2, "2 workers x 2 threads"),
        (2, "auto", 2, ""),
        ("auto", "auto", 0.5, ""),
        (0, "auto", 0.5, ""),
    ],
)
def test_asking_for_more_than_there_is_warns(procs, threads, usable, words) -> None:  # type: ignore[no-untyped-def]
    warning = make_plan(procs, threads, cores=cores(usable), environ={}).warning
    assert warning.startswith(words) and bool(warning) == bool(words)
