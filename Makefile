# Every target does its own set-up: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: install java demo test lint bench clean

install: java $(VENV)/.installed

# Java 17 or newer; Debian's headless JRE is enough.
java:
	@java -version >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null || { echo "Java 17 or newer is missing: install a JRE and run make again." >&2; exit 1; }; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -y -q --no-install-recommends openjdk-17-jre-headless; }

$(VENV)/.installed: setup.cfg setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[connect,demo,dev]'
	@touch $@

demo: install
	$(BIN)/python examples/digits.py

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python benchmarks/feed.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache demo-output
