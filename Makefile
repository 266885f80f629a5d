# Both commands of the README set up their own environment: only Python and pip are needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  := $(VENV)/.installed-test
# The tests run in two processes; one thread each keeps them from fighting over two cores.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-all lint types docs clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(TESTS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

demo: $(STAMP)
	$(BIN)/spiritlevel demo

lint: $(TESTS)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: $(TESTS)
	$(BIN)/mypy

test: lint types
	$(THREADS) $(BIN)/python -m pytest -n 2

test-all: $(TESTS)
	$(THREADS) $(BIN)/python -m pytest -n 2 -m slow

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build

docs: $(STAMP)
	$(BIN)/python -m spiritlevel.measures.documenting docs/measures.md
