# `make demo` and `make test` set up what they need; `make check` is all that CI runs.
.PHONY: help demo test check format lint types contracts generate bench image-check clean

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(VENV)/.cli  ## a simulated cluster runs every example, shows what each container got, and cleans up
	@$(BIN)/dractl demo $(ARGS)

# More workers than CI has cores: many tests wait for processes.
test: $(VENV)/.dev  ## all tests
	@$(BIN)/pytest -n 4 $(ARGS)

check: $(VENV)/.dev lint types contracts test  ## format, lint, types, import contracts, tests: what CI runs

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(VENV)/.dev
	@$(BIN)/mypy

contracts: $(VENV)/.dev
	@$(BIN)/lint-imports

format: $(VENV)/.dev  ## format the code and repair what can be repaired
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

generate: $(VENV)/.dev  ## generated files: protobuf messages, custom resource definitions, schemas, tables of the docs
	@$(BIN)/python -m dra_driver.kube.kubelet_api.generate && $(BIN)/python -m dra_driver.api.crd
	@$(BIN)/python -m dra_driver.api.config_schemas && $(BIN)/python -m dra_driver.devices.exclusion_docs
	@PYTHONPATH=. $(BIN)/python tests/dra_driver/checking/extract_models.py && $(BIN)/python -m dra_driver.checking.codes
	@PYTHONPATH=. $(BIN)/python charts/generate.py && PYTHONPATH=. $(BIN)/python docs/generate.py

bench: $(VENV)/.dev  ## the figures of the README, measured on this machine
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

image-check: $(VENV)/.dev  ## what the Dockerfile does, without it: a clean install, its size, and every entry point
	@GPU_DRA_TEST_IMAGE=1 $(BIN)/pytest -q -s tests/charts/test_image.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The first of these that is new enough makes the virtual environment.
$(VENV)/bin/python:
	@for python in $(PYTHON) python3.13 python3.14 python3.12 python3 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    echo "setting up $(VENV) with $$($$python --version)"; $$python -m venv $(VENV) && exit 0; \
	  fi; \
	done; echo "Python 3.12 or newer is needed; name one with: make PYTHON=/path/to/python3.12 demo" >&2; exit 1

$(VENV)/.cli: pyproject.toml | $(VENV)/bin/python
	@echo "installing what dractl needs (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli]' && touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the tests need (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable . && touch $@ $(VENV)/.cli
