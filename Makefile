# Two commands: `make demo` and `make test`. Both set up the environment once; a second call does not install again.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_INSTALL = $(VENV)/bin/pip install --quiet --disable-pip-version-check
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test lint setup slow clean

demo: setup
	$(BIN)/itl run

test: setup lint
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -c $(CONSTRAINTS) setuptools
	$(PIP_INSTALL) -c $(CONSTRAINTS) --no-build-isolation -e '.[dev,report]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
