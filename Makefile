# make run      four hospitals train one model, and every round is paid for first (base install, seconds)
# make test     install everything and run the tests: every fact once
# make quick    the tests of accounting, noise, plans and protocols: no torch, no servers
# make cover    the tests of prices alone, and how much of their room they run: 95 % or more
# make long     hundreds of seeds, thousands of kills: what repeats the facts until chance has no say
# make lint     style, types and the direction of imports
# make bench    ours beside the other libraries, in one process
# make docs     the documentation, in build/docs
# make changelog  what the next release brings, from changelog.d
# make picture  what make run spends, drawn for the README
#
# Each target makes .venv by itself when it is missing; stamps inside .venv keep it from being made twice.

PYTHON  ?= python3
WORKERS ?= 3
BIN     := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

# One thread a process: the tests run in several processes, and benchmarks compare like with like.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED := 0
# Some hundred processes read the package and the tests: what they compiled is kept, also where images switch that off.
export PYTHONDONTWRITEBYTECODE :=

PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Prices are measured by their own tests: tracing every other room as well would cost a third of the time.
PRICED  := tests/privacy tests/contracts src/quietsum/privacy
QUICK   := tests/aggregation tests/alerts tests/plan tests/privacy tests/secagg tests/test_doors.py tests/test_sampling.py

.PHONY: run picture quick test cover long lint bench docs changelog clean
.DEFAULT_GOAL := run

run: .venv/base.stamp
	$(BIN)/quietsum run examples/heart.toml

picture: .venv/base.stamp
	mkdir -p docs/_static
	$(BIN)/quietsum run examples/heart.toml --workspace build/picture
	$(BIN)/quietsum show latest --workspace build/picture --output docs/_static/heart.svg

quick: .venv/test.stamp
	QUIETSUM_TIER=quick $(PYTEST) -m "not slow and not long" $(QUICK) $(ARGS)

test: .venv/test.stamp
	$(PYTEST) -m "not long" $(ARGS)

cover: .venv/test.stamp
	$(PYTEST) -m "not long" --cov --cov-fail-under=95 $(PRICED) $(ARGS)

long: .venv/test.stamp
	$(PYTEST) -m long tests $(ARGS)

lint: .venv/test.stamp
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports --no-logo

bench: .venv/test.stamp
	for question in accounting noise ledger heart; do $(BIN)/python benchmarks/$$question.py $(ARGS) || exit 1; done

docs: .venv/docs.stamp
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

changelog: .venv/test.stamp
	$(BIN)/python -m towncrier build --draft --version next

clean:
	rm -rf docs/reference/commands docs/reference/rooms
	rm -rf .venv build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.venv/venv.stamp:
	$(PYTHON) -m venv .venv
	touch $@

.venv/base.stamp: pyproject.toml constraints.txt | .venv/venv.stamp
	$(INSTALL) -c constraints.txt -e .
	touch $@

# torch comes first and alone, so that pip is free to take a build without CUDA where one is on offer.
.venv/test.stamp: pyproject.toml constraints.txt | .venv/venv.stamp
	$(INSTALL) torch==2.13.0
	$(INSTALL) -c constraints.txt -e '.[test]'
	touch .venv/base.stamp $@

.venv/docs.stamp: pyproject.toml constraints.txt | .venv/venv.stamp
	$(INSTALL) torch==2.13.0
	$(INSTALL) -c constraints.txt -e '.[docs]'
	touch .venv/base.stamp $@
