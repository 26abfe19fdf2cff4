# `make train` and `make test` are all that a fresh machine needs: both set up what they use.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup train test check format bench docs clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

train: setup  ## trains MAPPO on particle/simple_spread and shows the result
	$(BIN)/coterie train

test: setup  ## every test
	$(BIN)/pytest

check: setup  ## what CI runs: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## speed, beside the yardstick
	$(BIN)/python benchmarks/speed.py

docs: setup  ## regenerates the pages and pictures that come from the code
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv
