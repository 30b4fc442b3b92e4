# Everything a newcomer needs: `make run` and `make test`. Needs Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# $(call install,EXTRAS): install and tell, every 5 s, how far it is: torch alone has some hundred MB.
define install
	@echo "installing hogwild$(1) and the packages it needs into $(VENV) (about 1 GB; a minute or more, once)"
	@(while sleep 5 > /dev/null 2>&1; do echo "  $(VENV): $$(du -sm $(VENV) | cut -f1) MB"; done) & beat=$$!; \
		trap 'kill $$beat' EXIT; trap 'exit 130' INT TERM; $(PIP) -e '.$(1)'
endef

# With it every process of every job would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run shell serve test test-all lint format reference stress bench-spine bench-dense bench-sparse bench-speedup bench-start bench-scaling bench-devices bench-gpu bench-people bench-service bench-cluster bench-convergence bench-quality bench-faults bench-live bench-rollouts bench-named bench-search soak docs dist clean

help:           ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml
	$(call install,)
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(call install,[test])
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(call install,[dev])
	@touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(call install,[bench])
	@touch $@

run: $(VENV)/.core   ## install the core and train the bundled digits with 4 workers
	@$(BIN)/python run.py --procs 4
	@printf '%s\n' "next:" \
		"  make shell                 a shell in which hogwild is installed; there:" \
		"  hogwild report latest      the report of this run: curves, workers, where the time went" \
		"  hogwild init               job files to start from: ratings, tables, text, images, your own model"

shell: $(VENV)/.core ## open a shell in which python and hogwild are those of .venv
	@echo "python and hogwild are those of $(VENV); leave with exit"
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" PATH="$(CURDIR)/$(BIN):$$PATH" $${SHELL:-/bin/sh} || true

$(VENV)/.service: $(BIN)/python pyproject.toml
	$(call install,[service])
	@touch $@

serve: $(VENV)/.service ## run the training service: it prints a link to its page
	@$(BIN)/python run.py serve

# A file stays with one process, whose fixtures run jobs for all its tests; what takes longest comes first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.test  ## install what the tests need; every quick test, and a whole job per mechanism (5 minutes)
	$(PYTEST) -m "(whole or not processes) and not slow"

test-all: $(VENV)/.test  ## the rest: whole jobs by their hundreds (15 minutes)
	$(PYTEST) -m "slow or (processes and not whole)"

lint: $(VENV)/.dev   ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(VENV)/.core ## write docs/reference/, docs/job-file.md and the schema of job files from the source
	$(BIN)/python -m tools.reference

stress: $(VENV)/.test ## the fault campaign: thousands of kills, by seed, until its table is full (over an hour a call)
	HOGWILD_THOROUGH=1 $(BIN)/python -m pytest -q tests/faults tests/whole_jobs tests/workers tests/training \
		tests/chaos tests/cli tests/config tests/data tests/inference tests/job tests/monitoring tests/benchmarks tests/service tests/cluster
	$(BIN)/python -m tests.faults.stress

bench-spine: $(VENV)/.bench ## measure the figures of the spine (writes benchmarks/results/spine.json)
	$(BIN)/python -m benchmarks.spine

bench-dense: $(VENV)/.bench ## measure the dense path: against the limit, DDP and the well-known way (25 minutes)
	$(BIN)/python -m benchmarks.dense

bench-sparse: $(VENV)/.bench ## measure the sparse models against scikit-learn, libmf, gensim and others (40 minutes)
	$(BIN)/python -m benchmarks.sparse

bench-named: $(VENV)/.bench ## measure tables whose rows are asked for by id (half an hour, most of it kills)
	$(BIN)/python -m benchmarks.named

bench-search: $(VENV)/.bench ## measure searches beside loops of Optuna's own (half an hour)
	$(BIN)/python -m benchmarks.search

bench-speedup: $(VENV)/.bench ## measure what the second worker gains, for every shipped config (an hour)
	$(BIN)/python -m benchmarks.speedup

bench-start: $(VENV)/.bench ## measure how long a command takes to its first update (15 minutes)
	$(BIN)/python -m benchmarks.start

bench-scaling: $(VENV)/.bench ## measure what 2, 4, 8, ... workers gain, up to the cores there are (half an hour)
	$(BIN)/python -m benchmarks.scaling

bench-devices: $(VENV)/.bench ## measure streamed data, reused buffers, recurrent models (35 minutes)
	$(BIN)/python -m benchmarks.devices

bench-gpu: $(VENV)/.bench ## measure a GPU, if there is one (4 minutes)
	$(BIN)/python -m benchmarks.gpu

bench-people: $(VENV)/.bench ## measure what the display costs, how fast a report and a CSV file are (10 minutes)
	$(BIN)/python -m benchmarks.people

bench-service: $(VENV)/.bench ## measure what the service costs, how fast it answers, and what lending cores gains (10 minutes)
	$(BIN)/python -m benchmarks.service

bench-cluster: $(VENV)/.bench ## measure several nodes: speed, rounds, a slow network, deaths, accuracy (two hours, half of them kills)
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.cluster --kills 200

bench-convergence: $(VENV)/.bench ## measure what asynchrony costs in accuracy (20 minutes)
	$(BIN)/python -m benchmarks.convergence

bench-quality: $(VENV)/.bench ## measure what more workers cost in quality, for every shipped config (one hour)
	$(BIN)/python -m benchmarks.quality

bench-faults: $(VENV)/.bench ## measure how fast a death, a stall, a replacement is (10 minutes)
	$(BIN)/python -m benchmarks.detection

bench-live: $(VENV)/.bench ## measure what live predictions cost the training, and how fast they are (10 minutes)
	$(BIN)/python -m benchmarks.live

bench-rollouts: $(VENV)/.bench ## measure reinforcement learning by two workers beside one plain process (10 minutes)
	$(BIN)/python -m benchmarks.rollouts

MINUTES ?= 10
soak: $(VENV)/.bench ## train for MINUTES=10 with a kill every 10 s: memory, open files, throughput
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(call install,[docs])
	@touch $@

docs: $(VENV)/.docs ## build the site of the documentation into site/
	$(BIN)/mkdocs build --strict

dist: $(VENV)/.dev   ## build wheel and sdist into dist/, and check them
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*

clean:               ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
