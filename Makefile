# make run | pipeline | control | quick | test | slice | test-all | test-matrix | spec | bench | chaos | histories | lint | docs | release | clean.
# Needs Python 3.10 to 3.13, Java 17+ and GNU make; installs the rest into .venv.

PYTHON ?= python3
ARGS ?=
SLICE ?= now
WORKERS ?= 3
PYTHONS ?= python3.10 python3.12 python3.13
SPARKS ?=
PLATFORMS ?=
BIN := .venv/bin
# A file's tests stay on one worker, which has one Spark session; see tests/support/selection.py.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Runs a command, and says every four seconds that it goes on: pip installs, and venv is made, without a word.
SAY = say() { echo "$$1"; (n=0; while sleep 4 >/dev/null 2>&1 && kill -0 $$$$; do n=$$((n + 4)); echo "$$1: $$n s"; done) & ticker=$$!; \
  trap 'kill $$ticker 2>/dev/null' EXIT; shift; "$$@"; }; say

# Hundreds of short Python processes would each compile this package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run pipeline control quick test slice test-all test-matrix spec bench chaos histories lint docs release clean python java

help:
	@echo "make run        the flights example on real data; again: finished, nothing read; FRESH=1 starts over"
	@echo "make pipeline   linked queries on the same data, and a second job from a savepoint; FRESH=1 starts over"
	@echo "make control    a job over the same data, throttled, paused, reconfigured and drained from outside; FRESH=1 starts over"
	@echo "make quick      the tests that need no Spark, server, process or Delta table: under a minute"
	@echo "make test       the core of the tests and the slice that is on; SLICE=3 for another one, ARGS='tests/test_x.py -k y'"
	@echo "                for some tests, WORKERS=4 on a larger machine"
	@echo "make slice      turn on the slice whose last pass is the oldest"
	@echo "make test-all   the core and all slices"
	@echo "make test-matrix  the quick tests and a file of each layer for each of PYTHONS, with the oldest and the newest libraries; SPARKS='4.0 4.1 4.3': jobs on each Spark; PLATFORMS='fabric-2.0': with its versions"
	@echo "make spec       the models of the protocols, and that each of their rules is needed: 3 to 6 minutes"
	@echo "make bench      ratios against plain Spark, measured side by side in one run; ARGS=--quick: ten figures in ten minutes"
	@echo "make nexmark Nexmark to its end beside plain Spark and Flink, undisturbed and under kills: hours; ARGS='--parts kills --queries q5'"
	@echo "make chaos      every sink, linked queries, checkpoints, savepoints, control events and the flights job, killed at random and at each named step"
	@echo "make histories  random histories: starts, kills, renames, restored and copied states; exact or refused"
	@echo "make lint       ruff, the layers of imports, and mypy --strict"
	@echo "make release    wheel, source distribution and release notes in dist/, checked and tried; uploads nothing"
	@echo "make docs       the documentation as a site in out/site; any link or name that leads nowhere fails"
	@echo "make clean      removes outputs and caches; .venv stays"

run: .venv/.run java
	@echo "running examples/flights.py"
	@$(BIN)/python examples/flights.py $(if $(filter-out 0,$(FRESH)),--fresh) $(ARGS)

pipeline: .venv/.run java
	@$(BIN)/python examples/pipeline.py $(if $(filter-out 0,$(FRESH)),--fresh) $(ARGS)

control: .venv/.run java
	@$(BIN)/python examples/control.py $(if $(filter-out 0,$(FRESH)),--fresh) $(ARGS)

# Nothing here waits for a server, so a third worker would only collect the tests once more.
quick: WORKERS = 2
quick: .venv/.test
	@$(PYTEST) --hypothesis-profile quick -m "not (spark or server or process or table or slow)" $(ARGS)

test: .venv/.test .venv/.browser java .venv/.prepared
	@$(PYTEST) --slice $(SLICE) $(ARGS)

slice: .venv/.test
	@$(BIN)/python -m tests.support.slices

test-all: .venv/.test .venv/.browser java .venv/.prepared
	@$(PYTEST) $(ARGS)

test-matrix: .venv/.dev java
	@$(BIN)/python -m tools.matrix $(if $(SPARKS),$(PYTHON) --sparks "$(SPARKS)",$(PYTHONS)) $(if $(PLATFORMS),--platforms "$(PLATFORMS)") $(ARGS)

spec: .venv/.test java
	@$(BIN)/python -m tests.spec $(ARGS)

bench: .venv/.test java
	@$(BIN)/python -m benchmarks $(ARGS)

nexmark: .venv/.test java
	@$(BIN)/python -m benchmarks.nexmark $(ARGS)

chaos: .venv/.test java .venv/.prepared
	@$(BIN)/python -m tests.chaos $(or $(ARGS),--sink all --kills 40)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos --job history)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos --job follow)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos --job beside --kills 40 --targets driver,jvm,all)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos --job diamond --targets driver,worker,jvm)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.checkpoints)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.savepoints)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.control)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.downtime)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.push)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos.unsynced)
	@$(if $(ARGS),,$(BIN)/python -m tests.chaos)

histories: .venv/.test java .venv/.prepared
	@$(BIN)/python -m tests.histories $(ARGS)

lint: .venv/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy --num-workers 2
	@$(BIN)/python -m tools.rules

release: .venv/.dev java
	@$(BIN)/python -m tools.release

docs: .venv/.docs
	@$(BIN)/python -m tools.pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)
	@echo "open out/site/index.html"

clean:
	@rm -rf out data build dist spark-warehouse metastore_db derby.log
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are older than what they depend on when versions change: then pip brings .venv up to date.
.venv/.run: pyproject.toml constraints.txt | python
	@test -x $(BIN)/python || { $(SAY) "making .venv" $(PYTHON) -m venv .venv; }
	@$(SAY) "installing into .venv" $(BIN)/python -m pip install --disable-pip-version-check -e '.[spark,examples]' -c constraints.txt
	@touch $@

.venv/.test: pyproject.toml constraints.txt | python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt
	@touch .venv/.run $@

.venv/.dev: pyproject.toml constraints.txt | python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch .venv/.run .venv/.test $@

# Spark starts faster from then on; see docs/cli.md.
.venv/.prepared: .venv/.test | java
	@$(BIN)/spark-ext prepare
	@touch $@

# Without npm the diagrams of the site are shown as text, and its files have no search when they are opened.
.venv/.docs: pyproject.toml constraints.txt docs/site/fetch_scripts.py | python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -c constraints.txt
	@$(BIN)/python docs/site/fetch_scripts.py
	@touch $@

# Where the machine has no Chromium and no npm, the tests of the page in a browser are skipped.
.venv/.browser: tests/support/fetch_browser.py | .venv/.test
	@$(BIN)/python -m tests.support.fetch_browser
	@touch $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed, and '$(PYTHON)' is not that. Install one ('apt-get install python3 python3-venv'," >&2; \
	  echo "'brew install python'), or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }

java:
	@command="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$command" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1); \
	test "$${major:-0}" -ge 17 || { \
	  echo "Java 17 or newer is needed; '$$command' is $${major:+Java }$${major:-not there}. Install it ('apt-get install" >&2; \
	  echo "openjdk-17-jre-headless', 'dnf install java-17-openjdk-headless', 'brew install openjdk@17'), or set JAVA_HOME." >&2; \
	  exit 1; }
