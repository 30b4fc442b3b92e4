"""The supervisor's loop."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from hogwild.workers.supervision.supervisor import Supervisor


class Waits(Exception):
    pass


def test_workers_start_before_the_first_wait() -> None:
    """A wait of the loop takes 50 ms where nothing happens, and nothing happens before there are workers."""
    supervisor: Any = object.__new__(Supervisor)
    for name in ("_session", "_watch", "_group", "_workers", "_answers", "_predictors", "_memory", "_pauses", "_step"):
        setattr(supervisor, name, MagicMock())
    supervisor._session.clock.longest_turn_s, supervisor._session.plan.rows = 0.0, 0
    supervisor._teams, supervisor._rounds, supervisor._outcome = [], None, None
    supervisor._group.wait.side_effect = Waits
    with pytest.raises(Waits):
        supervisor.run()
    supervisor._step.assert_called_once()
