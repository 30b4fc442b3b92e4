"""A store of jobs on an empty state folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hogwild.service.folders import StateFolder
from hogwild.service.store import Store


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


@pytest.fixture
def store(state: StateFolder) -> Iterator[Store]:
    opened = Store(state)
    opened.load()
    yield opened
    opened.close()
