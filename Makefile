# What a developer does with this repository. `make` alone lists it.
#
# Every target makes .venv itself from any Python >= 3.11 (PYTHON=... names one) and leaves it alone while pyproject.toml
# is unchanged. ARGS=... is passed on: make test ARGS="-k sqlite -x", make demo ARGS="report --approve". SEEDS=... tells
# the simulator which histories to live through.

VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
PYTHON ?=
ARGS ?=
SEEDS ?= 1000
PEERS := .venv-peers
TEMPORAL ?=
TEMPORAL_SERVER := go.temporal.io/server
TEMPORAL_VERSION := v1.30.4

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo kafka-demo test sim check format bench bench-quick bench-peers dist compiled clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

install: $(VENV)/.dev ## make .venv with streams and everything its developers need
	@:

demo: $(VENV)/.plain ## run the demo: two kills, one payment
	@$(VENV)/bin/streams demo $(ARGS)

# In a folder that goes with it. The traps take the broker down however the demo ends.
kafka-demo: $(VENV)/.stack ## the same on a real Kafka, started for it and taken down again
	@set -eu; folder=$$(mktemp -d); \
	trap '$(PY) -m streams dev down --remove --folder "$$folder"; rm -rf "$$folder"' EXIT; \
	trap 'exit 130' INT HUP TERM; \
	echo "starting Kafka in $$folder"; \
	stack=$$($(PY) -m streams dev up --json --folder "$$folder"); \
	url=$$(echo "$$stack" | sed 's/.*"kafka": "\([^"]*\)".*/\1/'); \
	$(PY) -m streams demo $(ARGS) --log "$$url"

# Two at a time, a file each: most tests wait for brokers, processes and clocks.
test: $(VENV)/.dev ## run every test
	@$(PY) -m pytest --numprocesses 2 --dist loadfile $(ARGS)

sim: $(VENV)/.plain ## simulate whole clusters with faults: SEEDS=1000, or SEEDS=1-50
	@$(PY) -m streams.testing.sim --seeds $(SEEDS) $(ARGS)

check: $(VENV)/.dev ## format, lint, types, house rules and the fast tests
	@$(PY) -m ruff format --check --quiet --output-format concise .
	@$(PY) -m ruff check --quiet --output-format concise .
	@$(PY) -m mypy
	@$(PY) -m pytest --quiet tests/test_tidy.py
	@$(PY) -m pytest --quiet --numprocesses 2 --dist loadfile -m "not slow" --ignore=tests/test_tidy.py $(ARGS)

format: $(VENV)/.dev ## format the code and mend what ruff can mend
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

bench: $(VENV)/.dev ## measure speed and memory, about 10 minutes: docs/benchmarks.md
	@$(PY) -m bench $(ARGS)

bench-quick: $(VENV)/.dev ## see that everything can be measured, about a minute; judges no time
	@$(PY) -m bench --quick $(ARGS)

bench-peers: $(VENV)/.dev $(PEERS)/.installed $(if $(TEMPORAL),$(PEERS)/go/bin/server) ## install other engines and measure them at the same job
	@$(PY) -m bench floor postgres saturated alone approval kafka-200 kafka-alone peer $(ARGS)

dist: $(VENV)/.dev ## build the wheel and the source archive into dist/
	@rm -rf dist
	@$(PY) -m build --outdir dist .

compiled: $(VENV)/.dev ## build a wheel whose kernel is compiled (needs a C compiler) into dist/, and name it
	@STREAMS_COMPILE=1 $(PY) -m build --wheel --outdir dist .

clean: ## remove .venv, caches and build results
	@rm -rf $(VENV) $(PEERS) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find streams examples bench tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: .plain is what a user gets, .stack adds Kafka, .dev adds the tools and includes both. A python that is gone (upgraded or
# removed) makes .venv/bin/python a dangling link, which counts as missing, and everything is made anew.

$(VENV)/.plain: pyproject.toml $(PY)
	@echo "installing streams into $(VENV)"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.stack: pyproject.toml $(PY)
	@echo "installing streams, Kafka's client and what starts a broker into $(VENV)"
	@$(PIP_INSTALL) --editable '.[kafka,devstack]'
	@touch $@ $(VENV)/.plain

$(VENV)/.dev: pyproject.toml $(PY)
	@echo "installing streams and its development tools into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.plain $(VENV)/.stack

# The peers of the benchmark, in an environment of their own. What cannot be installed here is said and left out: bench
# measures what it finds. Temporal's server is built from its source, minutes of work: only with `make bench-peers TEMPORAL=1`.
$(PEERS)/.installed: bench/peers/requirements.txt bench/peers/package.json Makefile | $(PY)
	@echo "installing the benchmark's peers into $(PEERS)"
	@$(PY) -m venv $(PEERS)
	@grep -v '^#' bench/peers/requirements.txt | while read -r package; do \
	    $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check "$$package" || echo "left out: $$package"; \
	done
	@cp bench/peers/package.json $(PEERS)/
	@if command -v npm >/dev/null; then \
	    npm install --silent --no-audit --no-fund --no-package-lock --prefix $(PEERS) || echo "left out: Restate's server"; \
	else echo "left out: Restate's server, which needs npm"; fi
	@touch $@

$(PEERS)/go/bin/server: Makefile | $(PEERS)/.installed
	@echo "building Temporal's server, which takes minutes"
	@GOBIN=$(CURDIR)/$(PEERS)/go/bin go install $(TEMPORAL_SERVER)/cmd/server@$(TEMPORAL_VERSION) \
	    $(TEMPORAL_SERVER)/cmd/tools/sql@$(TEMPORAL_VERSION) && touch $@ || echo "left out: Temporal's server, which needs Go"

$(PY):
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11 python); do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "making $(VENV) with $$("$$python" --version)"; \
	        exec "$$python" -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "no Python >= 3.11 with venv and ensurepip found$(if $(PYTHON), under PYTHON=$(PYTHON),; name one with PYTHON=...)" >&2; \
	echo "(on Debian and Ubuntu: apt install python3-venv)" >&2; \
	exit 1
