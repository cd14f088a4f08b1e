# Two commands: `make demo` and `make test`. Both set up the environment once; a second call does not install again.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PACKAGES ?= -e '.[dev,docs,report,onnx,backbones,tensorboard,search,serve]'
PIP_INSTALL = $(VENV)/bin/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
# Files are distributed in the order that tests/conftest.py determines.
BY_FILE = --dist loadfile --no-loadscope-reorder

# Compiled modules are kept: tests start many processes, and compiling the tests takes longer than importing them.
export PYTHONDONTWRITEBYTECODE =

# The oldest versions the package admits, torchvision, which the augmentation is held against there, and timm.
OLDEST = VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt PACKAGES='-e . pytest pytest-xdist torchvision timm'
CORE = augment nets engine memory gradients replay specialists generalists learner

.PHONY: demo test slow oldest lint docs setup clean

demo: setup
	$(BIN)/itl run --curves 16
	@echo "for the command itl: source $(BIN)/activate"

# Two processes of one thread each: what two cores do best with many small networks.
test: setup lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(BY_FILE)

# Exit status 5 is pytest's "no such tests".
slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(BY_FILE) -m slow || test $$? -eq 5

oldest:
	$(MAKE) --no-print-directory setup $(OLDEST)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n 2 $(BY_FILE) $(CORE:%=tests/%)

lint: setup
	$(BIN)/ruff check src tests benchmarks examples docs/conf.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/conf.py
	$(BIN)/mypy

# Warnings, which include broken internal links, are errors.
docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . build/docs
	@echo "wrote build/docs/index.html"

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) setuptools
	$(PIP_INSTALL) --no-build-isolation $(PACKAGES)
	touch $@

clean:
	rm -rf .venv .venv-oldest build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
