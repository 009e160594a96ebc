# `make demo`, `make test`, `make docs`. Each makes what it needs; a second run does no work twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.dependencies $(VENV)/.torch $(VENV)/.native
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q
COMPILE := $(BIN)/uv pip compile -q --constraint constraints.txt --universal --python-version 3.10 --generate-hashes --no-header \
	--annotation-style line
EXTRAS := --extra dev --extra vision --extra export --extra tensorboard
OWN_FILES := .ci .github .pre-commit-config.yaml app bench csrc docs examples experiments python_ref release robustdml_ops tests website $(wildcard *.md *.py *.toml *.cff) Dockerfile Makefile
NATIVE_SOURCES := CMakeLists.txt setup.py pyproject.toml app/pyproject.toml $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)

.PHONY: demo test test-all test-oldest test-newest lint types secrets bench docs docs-links sanitize fuzz leaks kills soak wheels check-wheels requirements clean
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/python -m experiments demo --out out

# Of the library, the application and the experiments; test-all has the tests marked `nightly`, too.
PYTEST := OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(READY)
	$(PYTEST) -m "not nightly"

test-all: $(READY)
	$(PYTEST)

# Losses and their distribution on the oldest PyTorch that pyproject.toml admits, and on the newest that was tried, with the
# native module as it is built.
test-oldest: TORCH := 2.6.0
test-newest: TORCH := 2.14.1
test-oldest test-newest: OTHER = $(VENV)/torch-$(TORCH)
test-oldest test-newest: $(READY)
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -v -e '^torch=' -e '^triton=' constraints.txt > $(OTHER)/constraints.txt
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(OTHER)/bin/pip install -q -c $(OTHER)/constraints.txt \
		torch==$(TORCH) numpy scipy pytest pytest-xdist hypothesis safetensors pytorch-metric-learning pytorch-lightning
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(OTHER)/bin/python -m pytest -n 2 --dist worksteal tests/distributed tests/losses

lint: types secrets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.* csrc/*/*/*.*)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff
	test ! -e $(BIN)/hadolint || $(BIN)/hadolint Dockerfile  # there is one for Linux on x86-64 alone
	$(BIN)/python -m release.audit_dependencies

types: $(READY)
	$(BIN)/mypy

secrets: $(READY)
	find $(OWN_FILES) -type f ! -path '*/__pycache__/*' ! -name '*.so' -exec $(BIN)/detect-secrets-hook --no-verify {} +

bench: $(READY)
	$(BIN)/python -m robustdml_ops.bench --out out/bench

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet -f website/mkdocs.yml
	$(BIN)/python -m website.check out/site

# Asks other hosts, so it needs a network.
docs-links: docs
	$(BIN)/python -m website.check out/site --external

# First pip, what builds the native module, and what PyTorch asks for. With --jobs 3 all others go on side by side.
FIRST := cmake|ninja|pip|pybind11|setuptools|wheel|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|sympy|typing-extensions
$(VENV)/.tools: requirements/ci.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	awk '/^[a-z]/ { wanted = /^($(FIRST))==/ } wanted' $< > $(VENV)/tools.txt
	$(PIP) --no-compile --require-hashes --no-deps -r $(VENV)/tools.txt
	touch $@

$(VENV)/.dependencies: $(VENV)/.tools requirements/data.txt
	$(PIP) --no-compile --require-hashes --no-deps -r requirements/ci.txt -r requirements/data.txt
	touch $@

$(VENV)/.torch: $(VENV)/.tools constraints.txt
	$(PIP) --no-compile -c constraints.txt torch  # whose build is the machine's choice: no hash fits all
	touch $@

$(VENV)/.native: $(VENV)/.tools $(NATIVE_SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation -e . -e app
	touch $@

# Commands are killed at random moments and go on; what they leave is held against an undisturbed run. docs/clusters.md
KILLS ?= 220
FAULTS ?= 70
SIGNALS ?= 50
kills: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m app.tests.hostile.kill --kills $(KILLS) --faults $(FAULTS) --signals $(SIGNALS) --seed 0

# One run on one to three processes, which are killed, ended and started again on another number for MINUTES.
MINUTES ?= 60
soak: $(READY)
	$(BIN)/python -m app.tests.hostile.soak --minutes $(MINUTES)

# After a change of the dependencies in either pyproject.toml or of constraints.txt; it asks the package index. PyTorch and what
# it brings, and the library itself, are left out.
requirements:
	test -x $(BIN)/uv || $(BIN)/pip install -q uv
	$(COMPILE) pyproject.toml app/pyproject.toml requirements/build.in requirements/experiments.in $(EXTRAS) \
		--excludes requirements/left-out.txt -o requirements/ci.txt
	$(COMPILE) requirements/data.in --no-deps -o requirements/data.txt

sanitize: $(READY)
	FUZZ_CASES=300 $(BIN)/python -m pytest tests/native/test_sanitized.py

# Random calls of ops against the reference, and wrong calls of everything public, CASES of each; CONTRIBUTING.md
CASES ?= 2000
SEED ?= 17
fuzz: $(READY)
	FUZZ_CASES=$(CASES) $(PYTEST) tests/fuzz --hypothesis-seed=$(SEED)

# What thousands of steps of each loss, filter and optimiser leave in memory, files and threads.
STEPS ?= 10000
leaks: $(READY)
	LEAK_STEPS=$(STEPS) $(PYTEST) tests/leaks

wheels: $(READY)
	$(BIN)/python -m release.make_wheels

check-wheels: $(READY)
	$(BIN)/python -m release.check_wheels --again

clean:
	rm -rf build dist out robustdml_ops/_native*.so
