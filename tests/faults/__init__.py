"""The fault campaign: seeded faults against real jobs, and the invariants that hold after each of them.

    python -m tests.faults.stress              by seed, until the table in benchmarks/results/faults.json is full
    python -m tests.faults.stress NAME SEED    the one run that failed, again

`make test` runs tests/faults/test_*.py: of sweeps over every point of a protocol it takes each sixth, `make stress`
(HOGWILD_THOROUGH) all. Faults come through the front door: signals, class paths, files."""

from tests.helpers.processes import IS_THOROUGH

EVERY = 1 if IS_THOROUGH else 6
