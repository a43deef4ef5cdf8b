# `make run` trains and publishes the default model, offline. `make help` lists all targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev
RECIPE ?= default
# A test waits for its processes half of the time: on two cores, four workers take 0.86 of the time of three.
WORKERS ?= $$($(BIN)/python -c 'import os; print(min(4, (os.cpu_count() or 1) + 2))')
unexport PYTHONDONTWRITEBYTECODE  # without bytecode, each process of a run would compile the libraries anew

.DEFAULT_GOAL := help
.PHONY: help setup run test slow chaos zoo benchmark check format docs clean

help:  ## list all targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(DEVELOPMENT)  ## create .venv and install all packages, as pinned in constraints.txt

$(RUNTIME): pyproject.toml constraints.txt .ci/install.py
	$(PYTHON) .ci/install.py $(VENV)
	@touch $@

$(DEVELOPMENT): pyproject.toml constraints.txt .ci/install.py
	$(PYTHON) .ci/install.py $(VENV) dev
	@touch $(RUNTIME) $@

run: $(RUNTIME)  ## run all stages of RECIPE (default) that are out of date
	$(BIN)/evergreen run $(RECIPE)

test: $(DEVELOPMENT)  ## run all tests except the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

slow: $(DEVELOPMENT)  ## run the slow, exhaustive tests that `make test` leaves out
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist loadfile --no-loadscope-reorder

chaos: $(DEVELOPMENT)  ## kill a training 200 times, publish under 500 schedules of faults, try 2,000 odd inputs, live through 30 nights (up to an hour)
	EVERGREEN_CHAOS_KILLS=$${EVERGREEN_CHAOS_KILLS:-200} EVERGREEN_CHAOS_PUBLISHES=$${EVERGREEN_CHAOS_PUBLISHES:-500} EVERGREEN_CHAOS_EXAMPLES=$${EVERGREEN_CHAOS_EXAMPLES:-2000} EVERGREEN_CHAOS_NIGHTS=$${EVERGREEN_CHAOS_NIGHTS:-30} $(BIN)/python -m pytest tests/chaos -m "slow or not slow" -o log_cli=true -o log_cli_level=INFO

zoo: $(DEVELOPMENT)  ## take tiny models of 50 architectures through all stages, for every objective; writes docs/models.md (up to an hour)
	$(BIN)/python -m tests.support.zoo

benchmark: $(DEVELOPMENT)  ## compare speeds with plain Trainer, datasets.map and dvc; writes docs/benchmarks.md (up to half an hour)
	$(BIN)/python -m benchmarks $(NAMES)

check: $(DEVELOPMENT)  ## check lint, format, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEVELOPMENT)  ## fix lint and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEVELOPMENT)  ## build the pages as a site with search in .scratch/site; a dead link fails
	$(BIN)/python docs/site.py

clean:  ## remove caches and unfinished work; keep .venv, results and releases
	rm -rf .scratch .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
