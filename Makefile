# make setup | train | check | test | docs | lock.  Needs only Python 3.11+ and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup train check test lint docs lock clean
setup: .venv/.ready

# uv is itself pinned in the lock file: pip installs that one entry, uv does the rest. Compiled modules are imported in
# half the time.
.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	awk '/^uv==/ { on = 1 } on; on && !/\\$$/ { exit }' requirements.lock > .venv/uv.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --require-hashes --compile-bytecode -r requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

train: setup
	$(BIN)/cgnl train

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/pyright

# Hundreds of processes import the same modules: they are compiled once, whatever the shell says. A process for each
# core is busy already: more threads in one of them would wait for the others.
check test: export PYTHONDONTWRITEBYTECODE =
check test: export OMP_NUM_THREADS = 1

# The tests of the core, and of the files that differ from the last commit.
check: lint
	$(BIN)/pytest -n auto --dist worksteal -m "not long" $$($(BIN)/python tests/changed.py)

test: lint
	$(BIN)/pytest -n auto --dist worksteal

# A site from docs/ and the docstrings: open site/index.html.
docs: setup
	$(BIN)/python docs/site.py

lock: setup
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-package cgnl --custom-compile-command "make lock" --quiet -o requirements.lock

clean:
	rm -rf .venv
