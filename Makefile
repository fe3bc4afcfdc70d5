# Everything is made inside .venv. Outside this folder only the caches of pip and uv and the model's weights are written.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
UV_VERSION := 0.13.7
LOCK_FLAGS ?=
PYTEST_FLAGS ?=
CLIENTS ?=

# uv brings its own certificates; those of the system are the ones an administrator maintains.
export UV_SYSTEM_CERTS ?= true
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup page page-if-possible system weights run test tests again check fmt bench soak clients schema types picture man lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) page-if-possible weights ## make .venv with the dependencies and this project, build the page, fetch the small model

page: $(STAMP) ## build the web page, if its sources have changed
	@$(BIN)/python packaging/build_page.py

# Where npm or the network is missing, the rest can still be set up and tested. A build that fails stops both.
page-if-possible: $(STAMP)
	@$(BIN)/python packaging/build_page.py --if-possible

system: ## install what the tests need from the system, when root and missing
	@sh scripts/install_system_packages.sh

weights: $(STAMP) ## fetch the weights of the embedded model, once
	@$(BIN)/python examples/weights.py || \
		echo "WARNING: no weights for the embedded model: its tests are skipped, and 'make run' cannot work" >&2

run: $(STAMP) weights ## small jobs on the embedded model, for real
	$(BIN)/python examples/hello.py

# The check uses one core, so it runs beside the tests. Tests wait often, so three of them share two cores.
test: $(STAMP) page-if-possible system weights ## check, and run all tests but the soak tests
	@$(MAKE) --no-print-directory --jobs 2 check tests

tests:
	$(BIN)/python -m pytest -n 3 $(PYTEST_FLAGS) || { test $$? = 1 && $(MAKE) --no-print-directory again; }

again: # what failed gets one more try, alone: see CONTRIBUTING.md
	@echo "WARNING: the tests that failed above are run once more, one by one; what passes only now is a bug to be found" >&2
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_FLAGS)

check: $(STAMP) ## lint, check the format, check the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m basedpyright
	$(BIN)/python scripts/write_web_types.py --check
	@if test -d web/node_modules; then cd web && PATH="$(CURDIR)/$(BIN):$$PATH" npm run --silent check; \
		else echo "WARNING: no web/node_modules: the types of the web page are not checked; make page" >&2; fi

fmt: $(STAMP) ## format, and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## run the benchmarks
	$(BIN)/python benchmarks/run.py
	for name in sandbox files cli server knowledge store walk web; do echo "\n$$name\n"; $(BIN)/python benchmarks/$$name.py || exit 1; done

soak: $(STAMP) ## run the soak tests, which take minutes or hours
	$(BIN)/python -m pytest -m soak -n 0 --timeout 3600 $(PYTEST_FLAGS)

clients: $(STAMP) ## install real client programs in .clients, and try each against a real server (needs Node)
	$(BIN)/python -m tests.clients.run $(CLIENTS)

schema: $(STAMP) ## write docs/events.schema.json from the events
	@mkdir -p docs
	$(BIN)/python -c 'from treadle.export.event_schema import render_schema; print(render_schema(), end="")' > docs/.events.schema.json.new
	@mv docs/.events.schema.json.new docs/events.schema.json

types: $(STAMP) ## write web/src/generated from the events and the routes
	$(BIN)/python scripts/write_web_types.py

picture: ## draw docs/architecture.svg and docs/cluster.svg
	$(PYTHON) docs/draw_architecture.py
	$(PYTHON) docs/draw_cluster.py

man: $(STAMP) ## write the man page from the commands
	$(BIN)/python docs/man/write_man_page.py

lock: $(BIN)/uv ## write requirements.lock from pyproject.toml; LOCK_FLAGS=--upgrade takes the newest
	$(BIN)/uv pip compile pyproject.toml --group dev --extra fast --extra local --extra mcp --extra postgres --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --quiet \
		$(LOCK_FLAGS) --output-file requirements.lock
	@! grep -nE '[a-z]+://' requirements.lock || { echo "requirements.lock must not name a host" >&2; exit 1; }

clean: ## remove .venv, caches and built files
	rm -rf $(VENV) build dist web/node_modules src/treadle/server/static .pytest_cache .ruff_cache .hypothesis docs/.events.schema.json.new
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "treadle needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1 | head -n 1). Try: make setup PYTHON=python3.11" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# pip reads settings that uv does not (its index, its certificates), so it is the second try.
$(STAMP): pyproject.toml requirements.lock | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements.lock \
		|| $(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --offline --no-deps --no-build-isolation -e .
	@touch $@
