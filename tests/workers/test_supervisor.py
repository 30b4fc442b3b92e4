"""The supervisor's loop."""

from typing import Any
from unittest.mock import MagicMock

from hogwild.workers.session.outcome import Outcome
from hogwild.workers.supervision.supervisor import Supervisor


def test_workers_start_before_the_first_wait() -> None:
    """A wait of the loop takes 50 ms where nothing happens, and nothing happens before there are workers."""
    supervisor: Any = object.__new__(Supervisor)
    for name in ("_session", "_watch", "_group", "_workers", "_answers", "_predictors", "_memory", "_progress"):
        setattr(supervisor, name, MagicMock())
    supervisor._session.clock.longest_turn_s, supervisor._session.plan.rows = 0.0, 0
    supervisor._teams, supervisor._rounds, supervisor._outcome = [], None, None
    supervisor._record = supervisor._pids = MagicMock(return_value=[])

    def step(now: float) -> None:
        supervisor._outcome = Outcome("succeeded", "done")

    supervisor._step = step
    assert supervisor.run().state == "succeeded"
    supervisor._group.wait.assert_not_called()
