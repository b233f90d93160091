# Every target does its own set-up: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Else each of the hundreds of processes that tests start compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install java demo test test-fast test-oldest oldest-environment test-matrix chaos soak notebooks notebooks-short lint docs bench clean

install: java $(VENV)/.installed

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(SUDO) apt-get install -y -q --no-install-recommends

# Java 17 or newer; a headless JRE is enough. Newer Debian releases have 21 only.
java:
	@major=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${major:-0}" -ge 17 ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	  echo "Spark needs Java 17 or newer, found: $${major:-none}. Install a JRE and run make again." >&2; exit 1; \
	fi; \
	$(SUDO) apt-get update -q && { $(APT) openjdk-17-jre-headless || $(APT) openjdk-21-jre-headless; }

# Debian and Ubuntu have venv in a package of its own.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) || { command -v apt-get >/dev/null && $(APT) python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.installed: setup.cfg setup.py | $(BIN)/pip
	$(BIN)/pip install --quiet -e '.[all,connect,demo,dev]'
	@touch $(VENV)/.demo $@

# What the demo needs, and no more.
$(VENV)/.demo: setup.cfg setup.py | $(BIN)/pip
	$(BIN)/pip install --quiet -e '.[spark,tensorflow]' matplotlib scikit-learn
	@touch $@

demo: java $(VENV)/.demo
	$(BIN)/python examples/digits.py

# tests/README.rst says what is in each tier. Tests wait a lot, so that there are more processes than cores; but each
# imports TensorFlow, and starts a JVM.
TEST_PROCESSES ?= 3

test: install
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

# What needs no Spark, no JVM and little time.
test-fast: install
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m 'not chaos and not soak and not slow' tests/unit

# The tests that cross every layer, on the lowest versions that setup.cfg allows (noxfile.py), but for those that start
# executors: what these add are Spark's own processes, and test-matrix has them.
test-oldest: install
	$(BIN)/nox -r -s corner-spark-3.5 -- -m "corner and not soak and not chaos" \
	  -k "not local-cluster and not several_executors" tests/e2e tests/unit

# Its environment alone, which takes a minute of one core.
oldest-environment: install
	$(BIN)/nox -r -s corner-spark-3.5 --install-only

# The same on the newest, on those between and on Spark Connect, and a page of the results.
test-matrix: install
	$(BIN)/nox
	$(BIN)/python docs/compatibility.py

# Everything that repeats a proven thing in another combination, and hundreds of runs in a row; all of it takes hours.
# A part of it: make chaos PART=zoo (every class of Keras), PART=applications (those of Keras), PART=simulation,
# PART=faults, PART=places (masters, hosts, stores, other Sparks), PART=programs (the rest). One that has not ended after
# 40 minutes, or MINUTES, fails.
# With a seed, random faults in random programs instead: make chaos SEED=1 MINUTES=60 (tests/chaos).
ZOO := tests/unit/test_zoo.py
CHAOS_zoo := $(ZOO) -k "not application and not family"
CHAOS_applications := $(ZOO) -k "application or family"
CHAOS_simulation := tests/simulation
CHAOS_faults := tests/chaos $(wildcard tests/e2e/*fault*.py tests/e2e/test_elastic.py)
CHAOS_places := tests/cluster $(filter-out $(CHAOS_faults),$(wildcard tests/e2e/test_*.py))
CHAOS_ALL := $(ZOO) $(CHAOS_simulation) $(CHAOS_faults) $(CHAOS_places)
CHAOS_programs := tests $(CHAOS_ALL:%=--ignore=%)
PART ?=

chaos: install
ifdef SEED
	$(BIN)/python tests/chaos $(SEED) $(or $(MINUTES),60)
else
	$(BIN)/python -m pytest -m chaos $(if $(PART),--session-timeout $$((60 * $(or $(MINUTES),40))) \
	  $(or $(CHAOS_$(PART)),$(error PART is zoo, applications, simulation, faults, places or programs)))
endif

soak: install
	$(BIN)/python -m pytest -m soak --timeout 3600

# The demo, and each notebook from start to end; what it shows has to be as good as what is kept.
notebooks: install
	$(BIN)/python -m pytest -n 2 -m 'chaos or not chaos' tests/test_demo.py tests/test_notebook.py

# The demo and the shortest; what CI runs.
notebooks-short: install
	$(BIN)/python -m pytest -n 2 -m 'chaos or not chaos' -k 'demo or 01_' tests/test_demo.py tests/test_notebook.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages, in build/docs; warnings are errors, links are followed, and the examples of docstrings are run.
# All are read anew (-E): the search of Sphinx forgets index entries of pages that it does not read again.
docs: install
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs build/docs
	$(BIN)/python -m pytest -q -m 'chaos or not chaos' tests/unit/test_docs.py
	$(BIN)/sphinx-build -W --keep-going -q -b doctest docs build/doctest

bench: install
	$(BIN)/python benchmarks/feed.py
	$(BIN)/python benchmarks/transform.py
	$(BIN)/python benchmarks/shared_model.py
	$(BIN)/python benchmarks/embeddings.py --only images
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/all_reduce.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/autolog.py
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/tfrecord.py
	$(BIN)/python benchmarks/bounded_memory.py
	$(BIN)/python benchmarks/size.py training
	$(BIN)/python benchmarks/size.py saved_model
	$(BIN)/python benchmarks/sparse_vectors.py
	$(BIN)/python benchmarks/snapshot.py
	$(BIN)/python benchmarks/elastic.py
	$(BIN)/python benchmarks/encryption.py
	$(BIN)/python benchmarks/search.py

clean:
	rm -rf $(VENV) .nox build *.egg-info .mypy_cache .ruff_cache .pytest_cache demo-output bench-output
