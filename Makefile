# Two commands: `make demo` and `make test`. Everything lands in .venv, .models and .clawrl of this folder.
PY := .venv/bin/python

.PHONY: setup model demo test lint

setup:
	@bash infra/setup.sh

model: setup
	@$(PY) -m infra.model

demo: model
	@$(PY) -m infra demo

test: model
	@$(PY) -m pytest tests --durations=25

lint: setup
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports
