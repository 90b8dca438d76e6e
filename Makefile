# One command each, the same for people, hooks and CI.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
# Quiet Flower and Ray; one thread per process, since the work runs in as many processes as there are cores.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fmt unit smoke e2e compose-test bench bench-scale gpu-check results presets settings fab clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/installed ## environment with everything the other targets need

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"isoproto needs Python 3.11 or newer, found {sys.version.split()[0]}; call: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup ## 20 simulated clients, 4 architectures, embedded digits of 4 domains -> a report
	$(BIN)/isoproto run --engine flower --clients 20 --run-config conf/demo.toml
	@echo; echo "Next: . .venv/bin/activate, then: isoproto runs, or: isoproto run -c \"partition='dirichlet'\""

test: check unit smoke ## everything that needs no Docker engine or browser, ending with one real flwr run

check: setup ## ruff, mypy, import contracts; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## format and fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

unit: setup ## unit, property, contract and in-process federation tests
	$(BIN)/pytest -q

smoke: setup ## one real flwr run with Ray: 4 nodes, 2 rounds
	$(BIN)/pytest -q -m smoke tests/e2e

e2e: setup ## the longer real runs: kills, a cut line and resume, 200 nodes, processes
	$(BIN)/pytest -q -m e2e tests/e2e

compose-test: setup ## the shipped compose file on a running Docker engine: built, trained with, broken, mended
	$(BIN)/pytest -x -m compose tests/compose

bench: setup ## speed ratios and bytes -> benchmarks/results, docs/performance.md
	$(BIN)/python benchmarks/speed/round_overhead.py
	$(BIN)/python benchmarks/speed/server_step.py
	$(BIN)/python benchmarks/speed/aggregate.py
	$(BIN)/python benchmarks/speed/cohort.py
	$(BIN)/python benchmarks/speed/data_memory.py
	$(BIN)/python benchmarks/speed/alignment_step.py
	$(BIN)/python benchmarks/speed/layout.py
	$(BIN)/python benchmarks/speed/maps.py
	$(BIN)/python benchmarks/speed/wire.py
	$(BIN)/python benchmarks/speed/secure.py
	$(BIN)/python benchmarks/speed/startup.py
	$(BIN)/python benchmarks/speed/deployment.py
	$(BIN)/python benchmarks/speed/table.py

bench-scale: setup ## what takes longer: many clients, large models (20 GB of disk meanwhile); accuracy with fewer bytes
	$(BIN)/python benchmarks/speed/scale.py
	$(BIN)/python benchmarks/reproduce/rounding.py
	$(BIN)/python benchmarks/speed/table.py

gpu-check: ## local training on this machine's GPU, with its own PyTorch and NumPy; installs nothing
	$(PYTHON) benchmarks/gpu/check.py

results: setup ## the tables of docs/results.md and docs/flagship.md, from JSON in benchmarks/results
	$(BIN)/python benchmarks/reproduce/digits4.py
	$(BIN)/python benchmarks/reproduce/flagship.py next main one anchors few long screening --table

presets: setup ## conf/fedsaf and conf/fedhpro, from the table in conf/tables.py
	$(BIN)/python conf/tables.py

settings: setup ## docs/settings.md and the tables of docs/wire-schema.md, from the declarations in the code
	$(BIN)/python tools/make_settings.py

fab: setup ## build the bundle and list what is in it
	$(BIN)/flwr build --app . && unzip -l *.fab

clean: ## remove the environment and caches
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache *.fab
