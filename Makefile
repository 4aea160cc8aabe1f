# Needs GNU make and Python 3.11 or newer; everything else goes into .venv.

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

ifndef PYTHON
PYTHON := $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3)
endif
PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Two workers on two cores; a file's tests stay in one worker, so they share its module fixtures.
PYTEST_FLAGS ?= -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install demo test check format-check lint types imports proto-lint generated-fresh \
	generate released format bench bench-5m breaking torture hostile fuzz clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

# --- the environment: a stamp per set of packages, redone when what it was made from changes ----------

$(VENV)/runtime.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

install: $(VENV)/dev.stamp ## everything that development needs, in .venv

# --- use ----------------------------------------------------------------------------------------------

demo: $(VENV)/runtime.stamp ## the whole path once, from an empty folder to a replayed verdict
	assay demo

bench: $(VENV)/dev.stamp ## measure speed beside this machine's own ceilings
	python -m tests.bench

bench-5m: $(VENV)/dev.stamp ## verify a log of 5,000,000 entries: time and memory; 2.3 GB in the temporary folder
	python -m tests.bench memory --entries 5000000

torture: $(VENV)/dev.stamp ## kill a ledger under load 200 times, and one on PostgreSQL 50 times
	python -m tests.crash.torture --kills 200
	python -m tests.crash.torture --kills 50 --store postgres

hostile: $(VENV)/dev.stamp ## 10,000 bad connections and 30 senders of rubbish, and what others see of them
	python -m tests.hardening.hostile

fuzz: $(VENV)/dev.stamp ## every parser for a minute; by coverage where the package atheris is installed
	python -m tests.fuzz all

# --- checks -------------------------------------------------------------------------------------------

check: format-check lint types imports proto-lint breaking generated-fresh test ## all that must hold before a commit

test: $(VENV)/dev.stamp ## the tests; PYTEST_FLAGS='-k law_07' for some of them
	python -m pytest $(PYTEST_FLAGS)

format-check: $(VENV)/dev.stamp
	ruff format --check .

lint: $(VENV)/dev.stamp
	ruff check .

types: $(VENV)/dev.stamp
	mypy

imports: $(VENV)/dev.stamp
	lint-imports

proto-lint: $(VENV)/dev.stamp
	buf lint

generated-fresh: $(VENV)/dev.stamp
	tools/generate --check

breaking: $(VENV)/dev.stamp ## refuse what would break who speaks the last release's proto/
	buf breaking proto --against proto/released.binpb

# --- writing ------------------------------------------------------------------------------------------

generate: $(VENV)/dev.stamp ## write the code of proto/*.proto
	tools/generate

released: $(VENV)/dev.stamp breaking ## take proto/ as released: a step of making a release, and of nothing else
	buf build proto --exclude-source-info --output proto/released.binpb

format: $(VENV)/dev.stamp ## format and sort the code
	ruff format .
	ruff check --fix-only .

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
