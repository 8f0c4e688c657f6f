# Two commands set everything up: `make run` and `make test`. Both need only Python 3.11 or newer.
PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-peers
CAMPAIGN_ROUNDS ?= 20
# A file at a time, the longest files first (tests/conftest.py).
SPREAD := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run test campaign bench bench-peers check format lock schema openapi clean

help:  ## List these targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: $(READY)  ## A running engine on http://127.0.0.1:8000 (PORT=…) with the sample book
	@exec $(BIN)/affidavit up --port $(PORT)

test: $(READY)  ## All tests but the campaigns, against real parts (6 minutes)
	@$(BIN)/pytest --ignore tests/campaigns --numprocesses 3 $(SPREAD)  # more than cores: many tests wait

# With CAMPAIGN_ROUNDS=1 the short one that runs on every change.
campaign: $(READY)  ## The fault-injection tests, with many rounds (CAMPAIGN_ROUNDS=…)
	@CAMPAIGN_ROUNDS=$(CAMPAIGN_ROUNDS) $(BIN)/pytest tests/campaigns $$(grep -rlE --include='test_*.py' 'ROUNDS|campaign' tests/pure tests/parts tests/product) --numprocesses 2 $(SPREAD)

bench: $(READY)  ## The benchmarks: ratios measured side by side, and bench/results.json
	@$(BIN)/python -m bench.ingest
	@$(BIN)/python -m bench.retrieval
	@$(BIN)/python -m bench.gate
	@$(BIN)/python -m bench.engine
	@$(BIN)/python -m bench.ledger
	@$(BIN)/python -m bench.verify
	@$(BIN)/python -m bench.archive
	@$(BIN)/python -m bench.load
	@$(BIN)/python -m bench.hostile

bench-peers: $(PEERS)/.ready  ## Installs other frameworks, which `make bench` then compares with (once)

check: $(READY)  ## Format, lint, types, layers, licences
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m supply.licences

format: $(READY)  ## Rewrite the code as `make check` wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# uv resolves for every platform at once; the addresses of the registry are left out on purpose.
COMPILE := $(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet

# One lock for each use: development and tests, the engine alone, and what builds its wheel. All agree on versions.
lock:  ## Rewrite the requirements*.lock with the newest versions that pyproject.toml allows
	@$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install --quiet uv
	@$(COMPILE) pyproject.toml --extra dev --upgrade --output-file requirements-dev.lock
	@$(COMPILE) pyproject.toml --output-file requirements.lock --constraint requirements-dev.lock
	@$(COMPILE) --output-file requirements-build.lock --constraint requirements-dev.lock --group build
	@rm -rf $(VENV)-lock

schema: $(READY)  ## Rewrite sql/schema.sql and sql/definitions.json, the whole schema as the migrations make it
	@$(BIN)/python -m tests.schema

openapi: $(READY)  ## Rewrite docs/reference/openapi.json, the description of the interface
	@$(BIN)/python -m tests.openapi

clean:  ## Remove the environments (the data in .affidavit/ stays)
	@rm -rf $(VENV) $(PEERS)

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and f"Affidavit needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "Making the environment in $(VENV)/ (about a minute, once) …"
	@$(PYTHON) -m venv $(VENV)
	@{ $(BIN)/python -m pip install --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r requirements-dev.lock 2>&1 || echo PIP-FAILED; } \
	  | awk '/^Collecting/ { printf "\r\033[K  %s", $$2; fflush() } /^Installing/ { printf "\r\033[K  installing …\n"; fflush() } \
	         /^ERROR/ { print "\n" $$0 } /^PIP-FAILED/ { failed = 1 } END { exit failed }'
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

$(PEERS)/.ready: bench/peers-requirements.txt
	@echo "Making the environment of the peers in $(PEERS)/ (about a minute, once) …"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet --only-binary :all: -r bench/peers-requirements.txt
	@touch $@
