# Needs Python 3.11 or newer, Java 17 or newer, and make. Everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
RUFF_PATHS := operator app tests bench charts hatch_build.py
DEMO_OPTIONS ?=
TEST_OPTIONS ?= --numprocesses auto --no-loadscope-reorder
TEST_REPORT ?=
TESTS ?= tests

.DEFAULT_GOAL := help
.PHONY: help demo test cluster check format docs digests bench lock clean

help:  ## Show what there is
	@echo "Queryable Topics: a Kafka topic as a queryable key-value store"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 make demo     uses another Python"

demo: needs-java $(READY)  ## Start a Kafka, example records and a node, and say what to try
	@exec $(BIN)/qtopic run -f examples/demo.yaml --produce-examples 20 $(DEMO_OPTIONS)

# With the class archive every JVM of the tests starts in half of the time.
test: needs-java $(READY)  ## Run every test, against real Kafka, Spark and RocksDB
	@$(BIN)/python -m queryable_app.ingest.training --wait || echo "No class archive: the JVMs of the tests start more slowly"
	$(BIN)/pytest $(TEST_OPTIONS) $(TEST_REPORT) $(TESTS)

cluster: export QT_TEST_IMAGE ?= queryable-topics:test
cluster: needs-java $(READY)  ## Test the chart, and the product on the cluster that KUBECONFIG names; CONTRIBUTING.md says how
	$(BIN)/pytest tests/chart tests/cluster $(TEST_REPORT)

check: $(READY)  ## Style, types, and which file may import which
	$(BIN)/ruff check $(RUFF_PATHS)
	$(BIN)/ruff format --check $(RUFF_PATHS)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## Write code in the project's format
	$(BIN)/ruff check --fix $(RUFF_PATHS)
	$(BIN)/ruff format $(RUFF_PATHS)

docs: $(READY)  ## Write what is made of the CRD (docs/reference.md, the chart's copy) and the table in docs/capacity.md
	$(BIN)/python -m tests.support.made_pages
	$(BIN)/python -m tests.support.capacity_page

digests: needs-java $(READY)  ## Write the digests of the JVM libraries, after a change of their versions; then read the difference
	$(BIN)/python -m tests.support.jar_digests

bench: needs-java $(READY)  ## Measure, and write bench/results
	$(BIN)/python -m bench

lock: $(READY)  ## Choose new versions of all dependencies
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    --no-emit-index-url --no-emit-find-links --all-extras --group dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --all-extras -c requirements.lock pyproject.toml \
	    -o requirements-image.lock

clean:  ## Take away what was built; downloads in the cache stay
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: needs-python needs-java
needs-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Python 3.11 or newer is needed, and $(PYTHON) is not: say which one with PYTHON=..." >&2; exit 1; }

needs-java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { \
	    echo "Java 17 or newer is needed: install a JRE, or set JAVA_HOME to one" >&2; exit 1; }

# Order only: whether there is a Python is asked each time, but does not make the environment old.
$(READY): requirements.lock pyproject.toml | needs-python
	@echo "Installing the locked dependencies into $(VENV), once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
