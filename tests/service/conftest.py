"""A store of jobs on an empty state folder, and a service with one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hogwild.service.folders import StateFolder
from hogwild.service.store import Store
from tests.helpers.service import Service, opened_store, serving


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


@pytest.fixture
def store(state: StateFolder) -> Iterator[Store]:
    with opened_store(state.path) as opened:
        yield opened


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as made:
        yield made
