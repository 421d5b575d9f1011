# Two commands: `make demo` and `make test`. Everything lands in .venv, .models and .clawrl of this folder.
PY := .venv/bin/python

.PHONY: setup model demo test lint lock

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

# Which versions of everything: run it after a change of the dependencies in pyproject.toml. Torch is not in it: setup.sh
# chooses its build.
lock: setup
	@echo torch==$$($(PY) -c "import torch; print(torch.__version__)") > .venv/torch.txt
	@.venv/bin/uv pip compile pyproject.toml --extra cpu --extra dev --python-version 3.11 --python-platform linux \
	    $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") -c .venv/torch.txt --generate-hashes \
	    --no-emit-package torch --no-annotate --no-header --quiet -o infra/requirements.lock
