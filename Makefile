# Two commands set everything up: `make run` and `make test`. Both need only Python 3.11 or newer.
PYTHON ?= python3
PORT ?= 8000
OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-peers
CAMPAIGN_ROUNDS ?= 20
# A file at a time, the longest files first (tests/conftest.py).
SPREAD := --dist loadfile --no-loadscope-reorder
# In memory where 8 GB are free: dozens of test databases on one disk wait seconds for each other's flushes.
IN_MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2> /dev/null | tail -1)" -gt 8000000 ] 2> /dev/null && echo TMPDIR=/dev/shm)

.DEFAULT_GOAL := help
.PHONY: help run test campaign promises faults again bench bench-peers check format lock schema openapi verifier reference pictures docs docs-run clean

help:  ## List these targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: $(READY)  ## A running engine on http://127.0.0.1:8000 (PORT=…, OPTIONS=--no-open) with the sample book
	@exec $(BIN)/affidavit up --port $(PORT) $(OPTIONS)

test: $(READY)  ## All tests but the campaigns, against real parts (9 minutes on two cores, when last measured)
	@$(IN_MEMORY) $(BIN)/pytest --ignore tests/campaigns --numprocesses 4 $(SPREAD)  # more than cores: many tests wait

# With CAMPAIGN_ROUNDS=1 the short one that runs on every change. What asserts the promised five seconds has the machine to itself.
PROMISED := tests/product/http/test_faults.py tests/campaigns/test_faults_in_memory.py tests/campaigns/test_outage.py \
  tests/campaigns/test_patroni.py tests/campaigns/machines/test_parts_killed.py tests/campaigns/machines/test_replicated.py
MARKED = $(shell grep -rlE --include='test_*.py' 'campaign_only|mark\.(campaign|rounds)' tests/pure tests/parts tests/product)
campaign: promises faults  ## The fault-injection tests, with many rounds (CAMPAIGN_ROUNDS=…)

promises: $(READY)
	@$(IN_MEMORY) CAMPAIGN_ROUNDS=$(CAMPAIGN_ROUNDS) $(BIN)/pytest $(PROMISED)

faults: $(READY)
	@$(IN_MEMORY) CAMPAIGN_ROUNDS=$(CAMPAIGN_ROUNDS) $(BIN)/pytest tests/campaigns $(filter-out $(PROMISED),$(MARKED)) $(PROMISED:%=--ignore %) --numprocesses 3 $(SPREAD)

again: $(READY)  ## Once more, one after the other, what failed in the last run (three tests at most)
	@failed=$$(grep -c '": true' .pytest_cache/v/cache/lastfailed 2> /dev/null || true); [ "$${failed:-0}" -le 3 ] || { echo "$$failed tests failed: that is no accident."; exit 1; }
	@$(IN_MEMORY) $(BIN)/pytest --last-failed --last-failed-no-failures none

bench: $(READY)  ## The benchmarks: ratios measured side by side, bench/results.json and bench/README.md
	@$(BIN)/python -m bench.ingest
	@$(BIN)/python -m bench.retrieval
	@$(BIN)/python -m bench.oversampling
	@$(BIN)/python -m bench.gate
	@$(BIN)/python -m bench.account
	@$(BIN)/python -m bench.engine
	@$(BIN)/python -m bench.engines
	@$(BIN)/python -m bench.ledger
	@$(BIN)/python -m bench.signing
	@$(BIN)/python -m bench.verify
	@$(BIN)/python -m bench.package
	@$(BIN)/python -m bench.archive
	@$(BIN)/python -m bench.drill
	@$(BIN)/python -m bench.load
	@$(BIN)/python -m bench.hostile
	@$(BIN)/python -m bench.overload
	@$(BIN)/python -m bench.console
	@command -v valgrind > /dev/null && $(BIN)/python -m bench.instructions || echo "No valgrind: instructions are not counted."
	@$(BIN)/python -m bench.publish

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

# One lock for each use: development and tests, the engine alone, and what builds its wheel. All agree on versions. The last is
# of programs that only the tests of deploy/ start.
lock:  ## Rewrite the requirements*.lock with the newest versions that pyproject.toml allows
	@$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install --quiet uv
	@$(COMPILE) pyproject.toml --extra dev --upgrade --output-file requirements-dev.lock
	@$(COMPILE) pyproject.toml --output-file requirements.lock --constraint requirements-dev.lock
	@$(COMPILE) --output-file requirements-build.lock --constraint requirements-dev.lock --group build
	@$(COMPILE) --output-file tests/data/validators/requirements.lock --group validators
	@rm -rf $(VENV)-lock

schema: $(READY)  ## Rewrite sql/schema.sql and sql/definitions.json, the whole schema as the migrations make it
	@$(BIN)/python -m tests.schema

openapi: $(READY)  ## Rewrite docs/reference/openapi.json, the description of the interface
	@$(BIN)/python -m tests.openapi

verifier: $(READY)  ## Rewrite the verifier page, audit/verifier/verifier.html, from its sources
	@$(BIN)/python -m supply.verifier_page

reference: $(READY)  ## Rewrite the generated pages of docs/reference/
	@$(BIN)/python -m tests.manual.reference

pictures: $(READY)  ## Take the pictures of the manual anew, from the running product (needs Chromium and Node)
	@npm ci --prefix docusaurus --ignore-scripts --no-audit --no-fund --silent
	@$(BIN)/python -m tests.pictures

docs: docusaurus/node_modules/.package-lock.json  ## The manual as a site in docs/site/build (needs Node 20.12 or newer)
	@npm run --silent --prefix docusaurus build
	@ln -sfn ../../docusaurus/node_modules docs/site/node_modules
	@cd docs/site && NO_UPDATE_NOTIFIER=1 node_modules/.bin/docusaurus build

docs-run: $(READY) docs  ## The manual on http://127.0.0.1:3300, with an engine that answers from it
	@exec node docs/site/run.mjs

docusaurus/node_modules/.package-lock.json: docusaurus/package-lock.json
	@echo "Installing Docusaurus and the plugin's tools in docusaurus/ (about a minute, once) …"
	@npm ci --silent --ignore-scripts --no-audit --no-fund --prefix docusaurus
	@touch $@

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
