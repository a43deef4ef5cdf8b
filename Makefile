# make run: from real text to a published model, offline. make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev
RECIPE ?= default

.DEFAULT_GOAL := help
.PHONY: help setup run test slow chaos check format clean

help:  ## show these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(DEVELOPMENT)  ## make .venv and install everything, as pinned in constraints.txt

$(RUNTIME): pyproject.toml constraints.txt .ci/install.py
	$(PYTHON) .ci/install.py $(VENV)
	@touch $@

$(DEVELOPMENT): pyproject.toml constraints.txt .ci/install.py
	$(PYTHON) .ci/install.py $(VENV) dev
	@touch $(RUNTIME) $@

run: $(RUNTIME)  ## retrain what is stale of RECIPE (default), and publish it
	$(BIN)/python -m flows.retrain $(RECIPE)

test: $(DEVELOPMENT)  ## all tests
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

slow: $(DEVELOPMENT)  ## the tests that `make test` leaves out because a quicker one shows the same
	$(BIN)/python -m pytest -m slow -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

chaos: $(DEVELOPMENT)  ## kill a training 200 times, publish under 500 schedules of faults, and more (up to an hour)
	EVERGREEN_CHAOS_KILLS=$${EVERGREEN_CHAOS_KILLS:-200} EVERGREEN_CHAOS_PUBLISHES=$${EVERGREEN_CHAOS_PUBLISHES:-500} $(BIN)/python -m pytest tests/chaos -m "slow or not slow" -o log_cli=true -o log_cli_level=INFO

check: $(DEVELOPMENT)  ## lint, format, types, law of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEVELOPMENT)  ## put code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and unfinished work; keep .venv, results and releases
	rm -rf .scratch .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
