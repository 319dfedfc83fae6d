# Postbus: every target sets up what it needs in .venv, once, from the locked lists in requirements/.
#
#   make serve ARGS='--port 6000'    start the broker (runtime packages only)
#   make test  ARGS='-k dead_letter' run the tests      make test-long   those that take minutes
#   make test-spark                  the tests of the data source and the pipelines, on a real Spark
#   make simulate ARGS='--jobs 2'    seeded histories by hand (docs/testing.md)
#   make compile                     the hot modules as machine code (docs/compiling.md)
#   make check                       lint and types     make format      rewrite in the house style
#   make coverage                    what the tests of amqp and broker leave out
#   make fuzz  ARGS='--seconds 600 --target sections'   hostile input, for as long as you like
#   make bench ROWS=w500,drain ROUNDS=3   measure the speed, beside Artemis and RabbitMQ
#   make bench-sdk, bench-hostile    an official client beside a stub; what others notice of a bad peer
#   make bench-soak ARGS='--minutes 30'   what stays behind after a long time at full rate
#   make bench-backlog ARGS='--large 1000000'   what a backlog costs in memory and speed
#   make bench-feed                  what a reader of the change feed costs the traffic
#   make bench-spark, bench-archive, bench-resubmit   the data pipeline
#   make bench-duplicates            what duplicate detection costs with a full window
#   make bench-writer                what a commit costs, by the thread that writes it
#   make lock                        write the locked lists anew         make clean
#
# Needs python3 >= 3.11 with venv, make, and a C compiler for the tests. Node comes from the test list.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
# Most conformance tests wait for locks and timers, so more workers than cores pay.
WORKERS ?= 8

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUNTIME := $(VENV)/.runtime-ready
DEV := $(VENV)/.dev-ready
NATIVE := $(VENV)/.native-ready
NODE := tests/js/node_modules/.ready
COMPILED := build/compiled/.ready
# What is run: the compiled modules where there are any that are not older than the sources.
CODE = $(shell $(MAKE) -q $(COMPILED) 2>/dev/null && echo PYTHONPATH=$(CURDIR)/build/compiled)

.PHONY: help serve test test-compiled test-long test-spark compile simulate fuzz check coverage format
.PHONY: bench bench-backlog bench-duplicates bench-hostile bench-sdk bench-soak bench-topics
.PHONY: bench-archive bench-feed bench-resubmit bench-sessions bench-spark bench-transactions
.PHONY: bench-writer
.PHONY: lock clean dev
help:
	@sed -n '3,/^#$$/s/^# \{0,3\}//p' Makefile

# Compiled first, so that a start spends its time on starting, also where Python may write no cache.
serve: $(RUNTIME) $(NATIVE)
	@$(BIN)/python -m compileall -q src
	@$(CODE) exec $(BIN)/postbus serve $(ARGS)

test: $(DEV) $(NODE)
	@$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not long and (not spark or spark_smoke)" \
		$(ARGS)

# The same tests, but for those of the simulator: it makes constants small and puts itself between
# methods, and in machine code both are fixed.
test-compiled: $(COMPILED) $(NODE)
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python -m pytest -o pythonpath="build/compiled ." \
		-n $(WORKERS) --dist worksteal -m "not long and not interpreted_only and not spark" $(ARGS)

# One session of Spark for most of them, so in one process; it takes a gigabyte or two.
test-spark: $(DEV)
	$(BIN)/python -m pytest -m "spark and not long" --timeout 900 $(ARGS)

test-long: $(DEV) $(NODE)
	POSTBUS_FRESH_EXAMPLES=1 $(BIN)/python -m pytest -m long --timeout 3600 $(ARGS)

simulate: $(DEV)
	$(BIN)/python -m tests.simulation $(ARGS)

# What it finds is printed and kept in tests/fuzz/corpus, where `make test` meets it from then on.
fuzz: $(DEV)
	$(BIN)/python -m tests.fuzz $(ARGS)

# How much of the two rooms that hold the promises their own tests run, by line and by branch.
coverage: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not long" --cov=postbus.amqp \
		--cov=postbus.broker --cov-branch --cov-report=term-missing:skip-covered \
		tests/unit/amqp tests/unit/broker tests/property/amqp tests/property/broker $(ARGS)

check: $(DEV)
	POSTBUS_NATIVE=1 CFLAGS="-O2 -Wall -Wextra -Werror" $(BIN)/python setup.py --quiet build_ext --force \
		--build-lib build/check --build-temp build/check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src bench
	$(BIN)/mypy --explicit-package-bases tests

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Takes minutes and wants the machine for itself; docs/performance.md says how to read it.
bench: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.run $(if $(ROWS),--rows $(ROWS)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NEUTRAL),--neutral $(NEUTRAL)) \
		$(if $(KEEP),--keep) $(ARGS)

bench-sdk: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.sdk $(ARGS)

bench-hostile: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.hostile $(ARGS)

bench-topics: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.topics $(ARGS)

bench-sessions: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.sessions $(ARGS)

bench-transactions: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.transactions $(ARGS)

bench-feed: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.feed $(ARGS)

bench-soak: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.soak $(ARGS)

bench-writer: $(DEV)
	@$(BIN)/python -m bench.segment_writer $(ARGS)

# Takes about ten minutes and 5 GB of disk with its default sizes.
bench-backlog: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.backlog $(ARGS)

# Takes about ten minutes and 2 GB of disk with its default sizes.
bench-duplicates: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.duplicates $(ARGS)

# Takes about five minutes and 4 GB of disk with its default sizes.
bench-spark: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.feed_spark $(ARGS)

bench-archive: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.archive $(ARGS)

bench-resubmit: $(COMPILED)
	@PYTHONPATH=build/compiled $(BIN)/python -m bench.resubmit $(ARGS)

dev: $(DEV) $(NODE)

# Beside the sources and not among them: a source that is changed is what runs next.
compile: $(COMPILED)
$(COMPILED): setup.py pyproject.toml $(shell find src -name '*.py' -o -name '*.c') | $(DEV)
	@echo "Compiling the hot modules (two minutes, once)"
	@rm -rf build/compiled build/mypyc && mkdir -p build && touch build/.compiling
	POSTBUS_COMPILE=1 $(PIP) install --no-deps --no-build-isolation --target build/compiled .
	@mv build/.compiling $@

$(RUNTIME): requirements/build.txt requirements/runtime.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "Postbus needs python3 3.11 or newer" >&2; exit 1; fi
	@echo "Setting up $(VENV) with $(PYTHON)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/build.txt
	$(PIP) install --require-hashes --only-binary :all: -r requirements/runtime.txt
	POSTBUS_NATIVE=0 $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# The thread that writes the log, beside its source. Nothing older may stay where the build fails.
$(NATIVE): setup.py src/postbus/store/log/_segment_writer.c | $(RUNTIME)
	@mkdir -p build && rm -rf build/native src/postbus/store/log/*.so
	@$(BIN)/python setup.py --quiet build_ext --inplace --build-lib build/native \
		--build-temp build/native >build/native.log 2>&1 || true
	@$(BIN)/python -c 'import postbus.store.log._segment_writer' 2>>build/native.log || \
		echo "No C compiler that works, see build/native.log: a Python thread writes the log"
	@touch $@

# Without build isolation: what builds python-qpid-proton is locked too (requirements/build.txt).
$(DEV): requirements/dev.txt $(RUNTIME) | $(NATIVE)
	@echo "Setting up the test packages (one is compiled: about a minute)"
	$(PIP) install --require-hashes --no-build-isolation -r requirements/dev.txt
	@touch $@

# Without install scripts: none of these packages needs one.
$(NODE): tests/js/package.json tests/js/package-lock.json $(DEV)
	cd tests/js && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

LOCK := build/lock/bin
COMPILE := $(LOCK)/uv pip compile --quiet --no-header --no-emit-index-url --no-emit-find-links \
	--generate-hashes --universal --python-version 3.11 --upgrade

lock:
	@[ -x $(LOCK)/uv ] || { $(PYTHON) -m venv build/lock && $(LOCK)/pip install --quiet uv; }
	$(COMPILE) requirements/runtime.in --output-file requirements/runtime.txt
	$(COMPILE) requirements/build.in --output-file requirements/build.txt
	$(COMPILE) requirements/dev.in --output-file requirements/dev.txt
	cd tests/js && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --package-lock-only --no-audit --no-fund
	@! grep -n '://' requirements/*.txt

clean:
	rm -rf $(VENV) build dist tests/js/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/postbus/store/log/*.so
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
