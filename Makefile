# Both commands of the README set up their own environment: only Python and pip are needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  := $(VENV)/.installed-test
SITE   := $(VENV)/.installed-docs
# The tests run in two processes; one thread each keeps them from fighting over two cores.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-all lint types docs site bench clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[page]"
	touch $@

# The peers that results are held against come without their dependencies: BackPACK asks for torchvision.
$(TESTS): $(STAMP) benchmarks/peers.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $@

demo: $(STAMP)
	$(BIN)/spiritlevel demo

lint: $(TESTS)
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/lint-imports --no-logo

types: $(TESTS)
	$(BIN)/mypy

test: lint types
	$(THREADS) $(BIN)/python -m pytest -n 2

test-all: $(TESTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray,hf,docs]"
	$(THREADS) $(BIN)/python -m pytest -n 2 -m slow

# The peers get their own environment.  BackPACK and PyHessian ask for torchvision, which they do not need here.
BENCH     := .venv-bench
BENCHED   := $(BENCH)/.installed
BENCHARGS ?=

$(BENCHED): pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . \
		-r benchmarks/requirements.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $@

bench: $(BENCHED)
	$(BENCH)/bin/python -m benchmarks $(BENCHARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build

# What is generated: the pages of measures and of commands, and below each code block and each docstring's example what
# it prints.  PAGES names pages alone.
PAGES ?=

docs: $(STAMP)
	$(BIN)/python -m spiritlevel.measures.documenting docs/measures.md
	$(BIN)/python docs/hooks/measure_by_measure.py
	$(BIN)/python -m spiritlevel.cli.documenting docs/reference/commands.md
	$(if $(PAGES),,$(BIN)/python docs/hooks/examples.py)
	$(BIN)/python docs/hooks/blocks.py $(PAGES)

$(SITE): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

site: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
