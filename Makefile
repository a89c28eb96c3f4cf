# `make demo` and `make test` set up what they need; `make check` is all that CI runs.
.PHONY: help demo test test-all check format lint types contracts generate lock bases pictures image chart sbom scan bench campaign faults mutants image-check clean

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests start hundreds of processes; where compiled modules are not kept, each of them compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
# Helm's library is Go, which reads this when a process starts. Little of an install lives on, so looking for garbage as
# often as Go does by itself is a fifth of its time.
export GOGC := 800
# A test is one of several processes; more threads of Go wait for each other.
export GOMAXPROCS := 1

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(VENV)/.cli  ## a simulated cluster runs every example, shows what each container got, and cleans up
	@$(BIN)/dractl demo $(ARGS)

# More workers than CI has cores: many tests wait for processes. Each begins with files of its own, and at the end takes
# over from another: what a module's tests share is made by few workers, and none is idle while others have much to do.
test: $(VENV)/.dev  ## the tests, without those marked slow
	@$(BIN)/pytest -n 4 --dist worksteal -m 'not slow' $(ARGS)

test-all: $(VENV)/.dev  ## all tests, the slow ones too: run each night
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-nightly} $(BIN)/pytest -n 4 --dist worksteal $(ARGS)

check: $(VENV)/.dev lint  ## format, lint, types, import contracts, tests: what CI runs
	@$(MAKE) --no-print-directory -j 2 types contracts $(VENV)/.collected
	@$(MAKE) --no-print-directory test

# Compiles the tests once, beside the check of types; else each worker would compile all of them.
$(VENV)/.collected: $(VENV)/.dev
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1; touch $@

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(VENV)/.dev
	@$(BIN)/mypy

contracts: $(VENV)/.dev
	@$(BIN)/lint-imports

format: $(VENV)/.dev  ## format the code and repair what can be repaired
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

generate: $(VENV)/.dev  ## generated files: protobuf messages, custom resource definitions, schemas, tables of the docs
	@$(BIN)/python -m dra_driver.kube.kubelet_api.generate && $(BIN)/python -m docs.from_code.crds
	@$(BIN)/python -m docs.from_code.config_schemas && PYTHONPATH=. $(BIN)/python tests/dra_driver/checking/extract_models.py
	@PYTHONPATH=. $(BIN)/python charts/generate.py && PYTHONPATH=. $(BIN)/python docs/generate.py

pictures: $(VENV)/.dev  ## docs/pictures: recordings of the real programs on a simulated cluster
	@PYTHONPATH=. $(BIN)/python -m docs.pictures.top

# Hashes of all wheels, for every platform and Python, from the index that uv is configured to use. What is pinned stays as
# long as it fits; `make lock ARGS=--upgrade` takes the newest versions.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.12 \
  --generate-hashes --only-binary :all: --custom-compile-command 'make lock' $(ARGS)

lock: $(VENV)/.dev  ## requirements*.txt: the exact files that the image is made of, as pyproject.toml allows them now
	@$(PIP_INSTALL) 'uv>=0.9'
	@$(LOCK) --extra cli --extra otel --extra webhook --output-file requirements.txt pyproject.toml
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(LOCK) --output-file requirements-build.txt -

# The digest of an index, which has all architectures: a platform's own digest builds for that platform only.
bases:  ## Dockerfile: today's digests of the images that it builds on; needs Docker
	@for tag in $$(sed -nE 's/^ARG (BASE|GO)=([^@]*)(@.*)?$$/\2/p' Dockerfile); do \
	  digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$$tag") \
	  && echo "$$digest" | grep -qE '^sha256:[0-9a-f]{64}$$' \
	  || { echo "$$tag: no digest; Docker with buildx and a way to its registry are needed" >&2; exit 1; }; \
	  sed -i -E "s#^(ARG (BASE|GO)=$$tag)(@.*)?\$$#\1@$$digest#" Dockerfile && echo "$$tag@$$digest"; \
	done

image: $(VENV)/bin/python  ## build/image.tar: the image for amd64 and arm64, without a container engine; and what is in it (CycloneDX)
	@PYTHONPATH=. $(BIN)/python -m release.image $(if $(MIRROR),--mirror $(MIRROR)) $(if $(HOOKS),--hooks $(HOOKS)) \
	  $(if $(IMAGE),--name $(IMAGE))

chart: $(VENV)/.cli  ## build/gpu-dra-driver-VERSION.tgz and build/chart.tar (OCI); IMAGE=REPOSITORY is the image that it names
	@PYTHONPATH=. $(BIN)/python -m release.chart $(if $(IMAGE),--image $(IMAGE)) $(if $(DIGEST),--digest $(DIGEST)) \
	  $(if $(RUNBOOKS),--runbooks $(RUNBOOKS))

sbom: $(VENV)/tools/.installed  ## build/sbom.cdx.json: the Python packages of the image, as CycloneDX
	@mkdir -p build && $(VENV)/tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom.cdx.json requirements.txt && echo build/sbom.cdx.json

# A package that the database does not know fails the scan (--strict): silence would look like safety.
scan: $(VENV)/tools/.installed  ## known vulnerabilities of the Python packages of the image; asks PyPI's database
	@for file in requirements.txt requirements-build.txt; do \
	  $(VENV)/tools/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off --requirement $$file \
	  || { echo "$$file: vulnerable, or not scanned; without access to PyPI's JSON API nothing is scanned" >&2; exit 1; }; \
	done

bench: $(VENV)/.dev  ## the figures of the README, measured on this machine: hours; churn.py needs kube-scheduler
	@for script in $(filter-out benchmarks/against.py benchmarks/churn.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

faults: $(VENV)/.dev  ## each of the faults in tests/faults is found by its test: before tests are made fewer
	@$(BIN)/python tests/faults/run.py $(ARGS)

mutants: $(VENV)/.dev  ## changes in the safety core that no test notices (an hour; ARGS="prepare/store" for a file)
	@nice $(BIN)/python tests/mutants/run.py $(ARGS)

# SEED, SEQUENCES, MINUTES, WORKERS, KEEP and REPLAY: see `tests/campaign`.
campaign: $(VENV)/.dev  ## random claims and faults against real processes; failures are kept and can be run again
	@PYTHONPATH=.:tests nice -n 10 $(BIN)/python -m campaign

image-check: $(VENV)/.dev  ## what the Dockerfile does, without it: a clean install, its size, and every entry point
	@GPU_DRA_TEST_INSTALL=1 $(BIN)/pytest -q -s tests/charts/test_image.py tests/release/test_image.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The first of these that is new enough makes the virtual environment.
$(VENV)/bin/python:
	@for python in $(PYTHON) python3.13 python3.14 python3.12 python3 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    echo "setting up $(VENV) with $$($$python --version)"; $$python -m venv $(VENV) && exit 0; \
	  fi; \
	done; echo "Python 3.12 or newer is needed; name one with: make PYTHON=/path/to/python3.12 demo" >&2; exit 1

# Without compiling what is installed: most of it is never imported, and what is, compiles itself at its first use.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/tools/.installed: | $(VENV)/bin/python
	@echo "installing what sbom and scan need (once)"
	@$(BIN)/python -m venv $(VENV)/tools
	@$(VENV)/tools/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7.5,<8' 'pip-audit>=2.10,<3' \
	  && touch $@

$(VENV)/.cli: pyproject.toml | $(VENV)/bin/python
	@echo "installing what dractl needs (once)"
	@$(PIP_INSTALL) --editable '.[cli]' && touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the tests need (once)"
	@$(PIP_INSTALL) --upgrade 'pip>=25.1'
	@$(PIP_INSTALL) --group dev --editable . && touch $@ $(VENV)/.cli
