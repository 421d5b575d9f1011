"""The tests that need the real `verifiers` are left out where it is not installed, and that is said at the end."""

import importlib.util

import pytest

WHY = (
    "left out: test_verifiers_library.py needs verifiers 0.4, which takes a virtual environment of its own "
    "(it wants another version of openai)"
)
MISSING = importlib.util.find_spec("verifiers") is None
collect_ignore = ["test_verifiers_library.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.write_line(WHY)
