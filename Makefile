# Needs python >= 3.11 and nothing else: the environment is made in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt docs docs-check watch-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## all five families race on embedded data: a table here, plots in a report
	$(BIN)/colonnade demo

test: check ## the same as check

check: export OMP_NUM_THREADS = 1
check: export MKL_NUM_THREADS = 1
check: export PYTHONDONTWRITEBYTECODE = # empty: processes that tests start, and the next run, find modules compiled
# Tests sync thousands of small files, which takes no time in memory. They need less than 1 GB.
check: export TMPDIR := $(shell shm=/dev/shm; \
  free=$$(df -Pk $$shm 2>/dev/null | awk 'NR == 2 {print $$4}'); \
  if test -w $$shm -a "$${free:-0}" -gt 4000000 && ! grep -q " $$shm .*noexec" /proc/mounts; \
  then echo $$shm; else echo $${TMPDIR:-/tmp}; fi)
check: PYTEST = $(BIN)/python -m pytest -q -n 3 --dist worksteal
check: $(VENV)/.installed-dev ## format, lint, types, layers and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@echo "$(BIN)/mypy src, beside $(PYTEST)"
	@$(BIN)/mypy src >$(VENV)/mypy.txt 2>&1 & mypy=$$!; \
	  $(PYTEST); tests=$$?; \
	  wait $$mypy; types=$$?; echo "mypy src:"; cat $(VENV)/mypy.txt; \
	  test $$tests = 0 -a $$types = 0

fmt: $(VENV)/.installed-dev ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The theme prints a note about its successor at every build.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.installed-docs ## the docs site, into site/
	$(BIN)/python docs/tools/generate.py
	$(BIN)/mkdocs build --strict # with --quiet, strict would miss the warnings that it counts
	@echo "Open site/index.html, or serve it: $(BIN)/python -m http.server --directory site"

docs-check: docs ## compare tables with their result files; open every page in a headless browser (Chromium)
	$(BIN)/python docs/tools/reproduction.py --check
	$(PIP) install --quiet -c constraints.txt playwright
	$(BIN)/python docs/tools/check.py site

watch-check: $(VENV)/.installed-dev ## the live page in a headless browser (Chromium), while a party is killed
	$(PIP) install --quiet -c constraints.txt playwright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow -rs tests/dashboard

clean: ## remove caches and build outputs (not .venv, not runs)
	rm -rf build dist site docs/reference .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps are older than what they were made from whenever an install is due; dev includes the core.
MADE_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard src/colonnade/privacy/*.c)
$(VENV)/.installed: $(MADE_FROM) | $(BIN)/pip
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(MADE_FROM) | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(MADE_FROM) | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $(VENV)/.installed $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Colonnade needs Python 3.11 or newer, but '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name a newer one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
