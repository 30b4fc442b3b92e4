"""A store of jobs on an empty state folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hogwild.service.folders import StateFolder
from hogwild.service.store import Store
from tests.helpers.service import opened_store


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


@pytest.fixture
def store(state: StateFolder) -> Iterator[Store]:
    with opened_store(state.path) as opened:
        yield opened
