"""`say` of tests of whole jobs: a command in this process, and all that it printed."""

from collections.abc import Callable

import pytest

from hogwild.cli import main

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    def run(*argv: str) -> tuple[int, str]:
        capfd.readouterr()
        status = main.run([*argv])
        found = capfd.readouterr()
        return status, found.out + found.err

    return run
