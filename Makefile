# make run: from real text to a published model, offline. make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RECIPE ?= default

.DEFAULT_GOAL := help
.PHONY: help setup run test slow chaos check format clean

help:  ## show these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(INSTALLED)  ## make .venv and install everything, as pinned in constraints.txt

# torch first and by itself: pinned like this it is the build for this machine's index, an open range takes far larger ones.
# --use-pep517: an older pip (Debian 12 has 23.0) would build seqeval by its setup.py, which can no longer be done.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --use-pep517 -c constraints.txt -e '.[dev]'
	@touch $@

run: $(INSTALLED)  ## retrain what is stale of RECIPE (default), and publish it
	$(BIN)/python -m flows.retrain $(RECIPE)

test: $(INSTALLED)  ## all tests
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

slow: $(INSTALLED)  ## the tests that `make test` leaves out because a quicker one shows the same
	$(BIN)/python -m pytest -m slow -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

chaos: $(INSTALLED)  ## kill a training 200 times, publish under 500 schedules of faults, and more (up to an hour)
	EVERGREEN_CHAOS_KILLS=$${EVERGREEN_CHAOS_KILLS:-200} EVERGREEN_CHAOS_PUBLISHES=$${EVERGREEN_CHAOS_PUBLISHES:-500} $(BIN)/python -m pytest tests/chaos -m "slow or not slow" -o log_cli=true -o log_cli_level=INFO

check: $(INSTALLED)  ## lint, format, types, law of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)  ## put code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and unfinished work; keep .venv, results and releases
	rm -rf .scratch .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
