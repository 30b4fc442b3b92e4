"""The protocol of leases under a thousand kills, and under one at every bytecode (protocol.py, protocol_points.py).
Each in a process of its own that has no torch and may fork."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from tests.faults import EVERY
from tests.faults.campaigns import protocol
from tests.faults.campaigns.protocol import command
from tests.faults.protocol_points import ITEMS
from tests.faults.protocol_scenario import Scenario

SEED, KILLS = 100_000, 1000
FEWEST_POINTS = 1500  # of the shortest item; fewer would mean that its modules are not looked at


@pytest.mark.processes
def test_a_thousand_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    found = command(tmp_path, "tests.faults.protocol", str(SEED), "--kills", str(KILLS))
    tally = found["tally"]
    assert tally["violations"] == []  # each with its seed; `python -m tests.faults.protocol SEED` replays it
    assert found["kills"] >= KILLS and found["resizes"] > 20 and tally["hangs"] == 0
    assert tally["indeterminate"] > 0, "no kill hit an apply: this tests too little"
    # Few die of a SIGTERM, those that had no handler yet; the others leave with status 0.
    assert {host.describe_exit(0), host.describe_exit(1), "Crime", "SystemExit"} <= found["deaths"].keys()
    assert not found["has_torch"]


@pytest.mark.processes
@pytest.mark.whole
def test_a_campaign_is_a_tally_of_runs(tmp_path: Path) -> None:
    tally = protocol.run(seed=2, count=1, folder=tmp_path)
    assert tally.is_clean and tally.injected > 0 and tally.measured["kills per s"]
    assert [file.name for file in tmp_path.iterdir()] == ["protocol-200000---kills-1.txt"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Every item, beside each other."""
    folder = tmp_path_factory.mktemp("points")
    with ThreadPoolExecutor(len(ITEMS)) as pool:
        found = pool.map(
            lambda name: command(folder, "tests.faults.protocol_points", name, "--every", str(EVERY)), ITEMS
        )
        yield dict(zip(ITEMS, found, strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("name", ITEMS)
def test_a_worker_may_die_at_every_bytecode_from_a_lease_to_its_acknowledgement(
    name: str, swept: dict[str, dict[str, Any]]
) -> None:
    found = swept[name]
    assert found["violations"] == []
    assert found["points"] > FEWEST_POINTS
    assert 0 < found["points in doubt"] < found["points"] / EVERY / 2
    assert found["redone"] == (found["indeterminate"] if ITEMS[name].redo else 0)
    assert not found["has_torch"]


def test_a_scenario_follows_from_its_seed() -> None:
    assert Scenario.of(5) == Scenario.of(5) != Scenario.of(6)
    crimes = [Scenario.of(5).crimes(worker, incarnation) for worker, incarnation in ((0, 1), (0, 1), (0, 2), (1, 1))]
    aims = [(each._left, each._kind, each._number) for each in crimes]
    assert aims[0] == aims[1] and len(set(aims)) == 3
