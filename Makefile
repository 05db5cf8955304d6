# Every target sets up what it needs in .venv: there is nothing to install by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: an environment is made anew when what it is made from changes.
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help install quickstart test check bench docs clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(READY)  ## set up .venv with dojang and the development tools

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dojang needs Python 3.11 or newer; use make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# torch first and by itself: resolved together with the rest, pip may prefer a newer build with gigabytes of CUDA.
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $@

quickstart: $(READY)  ## train a small model with RL on the CPU, in about two minutes
	$(BIN)/dojang train quickstart

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest

check: $(READY)  ## lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## measure speed, each figure as a ratio to a named baseline
	$(BIN)/python bench/rollout.py
	$(BIN)/python bench/startup.py

docs: $(READY_DOCS)  ## build the documentation into site/
	$(BIN)/python docs/make_reference.py
	$(BIN)/mkdocs build --strict --quiet

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

clean:  ## remove what the other targets made
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
