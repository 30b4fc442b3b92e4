"""Which evaluation is the best, and when it is enough: values in, decisions out."""

import math

import pytest

from hogwild.workers.session.evaluation import Monitor

NAN = math.nan


@pytest.mark.parametrize(
    ("higher", "values", "best_at"),
    [
        (True, [0.5, 0.7, 0.6], [True, True, False]),
        (False, [0.5, 0.7, 0.4], [True, False, True]),
        (False, [0.5, 0.5], [True, False]),  # as good is not better: the earlier one is kept
        (True, [NAN, 0.1, NAN, 0.2], [True, True, False, True]),
        (False, [NAN, NAN], [True, False]),
    ],
)
def test_the_best_is_the_first_that_nothing_before_it_reaches(
    higher: bool, values: list[float], best_at: list[bool]
) -> None:
    monitor = Monitor("auc", higher)
    assert [monitor.look(10 * n, {"loss": 1.0, "auc": value}) for n, value in enumerate(values)] == best_at
    assert monitor.best is not None
    assert monitor.best["updates"] == 10 * max(n for n, is_best in enumerate(best_at) if is_best)


def test_a_metric_that_is_missing_once_is_no_better_than_one_that_was_there() -> None:
    monitor = Monitor("auc", True)
    assert monitor.look(1, {"loss": 1.0}) and monitor.look(2, {"auc": 0.1}) and not monitor.look(3, {"loss": 0.1})


def test_patience_counts_evaluations_in_a_row_and_survives_a_checkpoint() -> None:
    monitor = Monitor("loss", False, patience=2)
    monitor.look(1, {"loss": 1.0})
    monitor.look(2, {"loss": 2.0})
    assert not monitor.is_out_of_patience
    other = Monitor("loss", False, patience=2)
    other.restore(monitor.state())
    assert not other.is_out_of_patience
    other.look(3, {"loss": 3.0})
    assert other.is_out_of_patience and other.best == {"updates": 1, "loss": 1.0}
    other.look(4, {"loss": 0.5})
    assert not other.is_out_of_patience


def test_without_patience_it_is_never_enough() -> None:
    monitor = Monitor("loss", False)
    for updates in range(100):
        monitor.look(updates, {"loss": float(updates)})
    assert not monitor.is_out_of_patience


def test_a_checkpoint_of_a_job_that_had_no_patience_counts_from_there() -> None:
    monitor = Monitor("loss", False, patience=1)
    monitor.restore({"best": {"updates": 5, "loss": 0.1}})
    assert not monitor.is_out_of_patience
    monitor.look(6, {"loss": 0.2})
    assert monitor.is_out_of_patience
