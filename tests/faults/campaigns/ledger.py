"""The ledger without processes (`tests/faults/ledger.py`): queue, schedules and ring under random deaths, stops,
rollbacks, checkpoints, resumes, more epochs. A run is a fault that was survived when nothing is wrong at its end."""

from pathlib import Path

from tests.faults.ledger import fuzz
from tests.faults.tally import Tally


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` runs with seeds of their own, which no other seed of the campaign uses."""
    tally = Tally(injected=count)
    for number in range(seed * count, (seed + 1) * count):
        if (words := fuzz(number)) is None:
            tally.survived += 1
        else:
            tally.violations.append(f"tests.faults.ledger.fuzz({number}): {words}")
    return tally
