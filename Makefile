# `make demo`, `make test` and `make docs` set everything up by themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test lint unit docs clean

demo: $(VENV)/.demo
	$(BIN)/python -m benchmarks demo --out demo-report

# `make test COVERAGE=--cov` measures coverage too, as CI does; it takes half as long again.
# One thread per process: two processes of two threads each hinder one another on small tensors.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(COVERAGE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --nbmake examples/*.ipynb

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

unit: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow" tests/unit tests/property tests/paper

# The site, in site/, and the report of all records, in site/report/. A dead link is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m benchmarks report --out site/report

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python setup.cfg constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/.test: $(BIN)/python setup.cfg constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench,test,lint]"
	touch $@ $(VENV)/.demo

$(VENV)/.docs: $(BIN)/python setup.cfg constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench,docs]"
	touch $@

clean:
	rm -rf $(VENV) demo-report site .coverage .pytest_cache .mypy_cache .ruff_cache
