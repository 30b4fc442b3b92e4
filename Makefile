# Everything a newcomer needs: `make run` and `make test`. Needs Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# With it every process of every job would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-quick lint format stress bench-spine bench-dense bench-sparse bench-devices bench-people bench-convergence bench-faults soak clean

help:           ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml
	$(PIP) -e .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(PIP) -e '.[bench]'
	@touch $@

run: $(VENV)/.core   ## install the core and train the bundled digits with 4 workers
	$(BIN)/python run.py --procs 4

# Files in the order of tests/conftest.py: those that take longest come first.
test-quick: $(VENV)/.test  ## the tests that start no process and are not slow (a minute)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 -m "not processes and not slow"

test: $(VENV)/.test  ## install what the tests need and run them (CI runs exactly this)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev   ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

stress: $(VENV)/.test ## the fault campaign: thousands of kills, by seed, until its table is full (over an hour a call)
	HOGWILD_THOROUGH=1 $(BIN)/python -m pytest -q tests/faults tests/whole_jobs tests/workers tests/training \
		tests/chaos tests/cli tests/config tests/data tests/inference tests/job tests/monitoring tests/benchmarks
	$(BIN)/python -m tests.faults.stress

bench-spine: $(VENV)/.bench ## measure the figures of the spine (writes benchmarks/results/spine.json)
	$(BIN)/python -m benchmarks.spine

bench-dense: $(VENV)/.bench ## measure the dense path: against the limit, DDP and the well-known way (25 minutes)
	$(BIN)/python -m benchmarks.dense

bench-sparse: $(VENV)/.bench ## measure the sparse models against scikit-learn, libmf, gensim and others (40 minutes)
	$(BIN)/python -m benchmarks.sparse

bench-devices: $(VENV)/.bench ## measure streamed data, reused buffers, recurrent models, and a GPU where there is one (35 minutes)
	$(BIN)/python -m benchmarks.devices

bench-people: $(VENV)/.bench ## measure what the display costs, how fast a report and a CSV file are (10 minutes)
	$(BIN)/python -m benchmarks.people

bench-convergence: $(VENV)/.bench ## measure what asynchrony costs in accuracy (20 minutes)
	$(BIN)/python -m benchmarks.convergence

bench-faults: $(VENV)/.bench ## measure how fast a death, a stall, a replacement is (10 minutes)
	$(BIN)/python -m benchmarks.detection

MINUTES ?= 10
soak: $(VENV)/.bench ## train for MINUTES=10 with a kill every 10 s: memory, open files, throughput
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

clean:               ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
