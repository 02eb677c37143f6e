# The two commands of the README. Each makes what it needs: a virtual environment with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all lint docs reproduce clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,demo]'
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

test: lint docs
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: lint docs
	$(BIN)/python -m pytest -n auto --dist worksteal -m ''

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The paper's tables and figures at small sizes, about 20 minutes on two cores; then the pictures and docs/reproduction.md from all results.
SCRIPTS := table2_comparison table1_complexity figure_projection figure_epochs figure_methods appendix_fixed_point nystrom_size
reproduce: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[reproduce]'
	$(BIN)/python -m reproduce.data fetch
	set -e; for script in $(SCRIPTS); do $(BIN)/python -m reproduce.$$script --small || [ $$? -eq 3 ]; done
	$(BIN)/python -m reproduce.page

clean:
	rm -rf $(VENV) site build dist *.egg-info src/*.egg-info demo-output
