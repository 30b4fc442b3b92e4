"""For tests of reading: a group of processes, and a journal that keeps what reading has to say."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from hogwild.config import schema
from hogwild.planning.cpu_plan import plan_here
from hogwild.workers.processes.group import ProcessGroup
from tests.helpers.jobs import JOBS


class Said:
    """A journal's records."""

    def __init__(self, group: ProcessGroup) -> None:
        self.sentences: list[str] = []
        self.events: list[dict[str, Any]] = []
        group.tell(self)

    def show_message(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def event(self, kind: str, /, **values: Any) -> None:
        if kind == "data-read":
            self.events.append(values)


@contextlib.contextmanager
def group_of_two() -> Iterator[ProcessGroup]:
    """The group of a job of two workers, on any machine with two readers. They find the modules of tests/jobs."""
    path = sys.path[:]
    sys.path.insert(0, str(JOBS))
    with ProcessGroup(schema.Supervise()) as group:
        group.start(plan_here(2, 1, pin=False))
        group.readers = 2
        yield group
    sys.path[:] = path
