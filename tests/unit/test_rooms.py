"""The walls between the packages: imports point down, light packages stay light, ours are ours."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "serve", "judge", "train", "storage", "infra")


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_is_the_one_of_this_repository(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None and Path(module.__file__).is_relative_to(ROOT)


@pytest.mark.parametrize(
    "name", ["infra.cli", "flows", "judge", "storage.records", "serve.rendering", "serve.sessions"]
)
def test_imports_without_torch(name: str) -> None:
    code = f"import json, sys, {name}; print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_imports_point_down() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_style() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "."], ["format", "--check", "."]):
        done = subprocess.run([ruff, *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
