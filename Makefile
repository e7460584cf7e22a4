# Everything installs itself into .venv; only Python >= 3.11 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A build needs far less than the tests do.
DEMO_STAMP := $(VENV)/.installed-demo

# Tests start hundreds of processes: where nobody keeps bytecode, each would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-corpora test-faults test-versions test-peers lint format docs bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(DEMO_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[etl]'
	touch $@

# Where everything is installed already, nothing more is.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/python -m tokenlake.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Real text and real tokenizers, from the folder that TOKENLAKE_TEST_DATA names; CORPORA=sample for a third of them.
CORPORA ?= all
test-corpora: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m corpora --corpora $(CORPORA)

# FAULTS=sample for a fixed sample of a few minutes; all of them take the better part of an hour.
FAULTS ?= all
test-faults: $(STAMP)
	$(BIN)/python -m pytest -n 2 --faults $(FAULTS) tests/faults

# A short suite at the lowest, the pinned and the newest versions of what we depend on; VERSIONS="lowest pyarrow-20" for some.
VERSIONS ?=
test-versions: $(STAMP)
	$(BIN)/python -m tests.environments $(VERSIONS)

# The libraries of other trainers read exports; `test-versions` runs it, too.
test-peers: $(STAMP)
	$(BIN)/python -m tests.environments peers

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --project benchmarks
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages of docs/, with a reference that is written from the code, into site/.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

$(VENV)/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

# BENCH="--quick" or any other option of `python -m benchmarks --help`.
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) .demo site artifacts .pytest_cache .ruff_cache .hypothesis
