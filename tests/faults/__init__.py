"""The fault campaign: seeded faults against real jobs, and the invariants that hold after each of them.

    python -m tests.faults.stress              by seed, until the table in benchmarks/results/faults.json is full
    python -m tests.faults.stress NAME SEED    the one run that failed, again

What `make test` runs of it is in tests/faults/test_*.py. Faults come through the front door: signals, class paths,
files."""
