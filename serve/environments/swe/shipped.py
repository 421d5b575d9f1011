"""Our own tasks: bugs in the repositories under `repositories/`, one file a kind of bug under `tasks/`.

A task names its repository, the text of the good source that the bug replaces, and hidden tests. Its fields:

    repository = "tally"
    tests = '''...'''                  # a file of hidden tests, tests/test_issue.py
    fail_to_pass = ["test_powers"]     # functions of the hidden tests, or ids of tests that the repository has
    [[task.bug]]                       # one or more, at the end of the task
    file = "tally/parser.py"
    good = '''...'''                   # stands once in the file
    bad = '''...'''

All other tests, hidden ones and those of the repository, are PASS_TO_PASS.
"""

import ast
import functools
from pathlib import Path
from typing import Any

from serve.environments.swe.payload import new_file_patch, read_payload
from serve.environments.swe.repository import source_files, with_bug
from serve.environments.tasks import Limits, Place, Task, check_all, load_toml
from serve.environments.terminal.calls import with_entries
from serve.environments.terminal.payload import brief, is_text

LIMITS = Limits(steps=20, step_s=30.0, episode_s=600.0, memory_mb=512, processes=64, disk_mb=64, output_chars=8000)
TASKS = Path(__file__).with_name("tasks")
HIDDEN = "tests/test_issue.py"
FIELDS = {"repository", "tests", "fail_to_pass", "bug"}


@functools.cache
def load() -> tuple[Task, ...]:
    """The shipped tasks.

    Raises:
        TaskError: names file, line and field.
    """
    files = sorted(TASKS.glob("*.toml"))
    tasks = (task for path in files for task in load_toml(path, "swe", LIMITS, read_fields))
    return check_all(with_entries(tasks, "submit", "SWE"))


def read_fields(own: dict[str, Any], place: Place) -> dict[str, Any]:
    """The payload of a task of ours.

    Raises:
        TaskError: names file, line and field.
    """
    if unknown := sorted(set(own) - FIELDS):
        raise place.error(unknown[0], f"unknown; known are {', '.join(sorted(FIELDS))}")
    repository, tests, bug = own.get("repository"), own.get("tests"), own.get("bug")
    if not isinstance(repository, str) or not isinstance(tests, str) or not isinstance(bug, list):
        raise place.error("repository", "repository, tests and bug are needed")
    listed = own.get("fail_to_pass", [])
    if not isinstance(listed, list) or not all(map(is_text, listed)):
        raise place.error("fail_to_pass", f"{brief(listed)}: a list of names or ids of tests is needed")
    try:
        changes = [(one["file"], one["good"], one["bad"]) for one in bug]
        good = source_files(repository)
        with_bug(good, tuple(changes))
        hidden = test_ids(HIDDEN, tests)
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise place.error("bug", str(error)) from error
    if HIDDEN in good:
        raise place.error("tests", f"the repository has a file {HIDDEN} already")
    seen = [one for path, text in good.items() if path.startswith("tests/") for one in test_ids(path, text)]
    failing = [one if "::" in one else f"{HIDDEN}::{one}" for one in listed]
    if unknown := sorted(set(failing) - {*hidden, *seen}):
        raise place.error("fail_to_pass", f"there is no test {unknown[0]!r}")
    payload = {
        "repository": repository, "bug": [list(one) for one in changes], "test_patch": new_file_patch(HIDDEN, tests),
        "FAIL_TO_PASS": failing, "PASS_TO_PASS": [one for one in (*hidden, *seen) if one not in failing],
        "test_s": 30.0,
    }  # fmt: skip
    read_payload(payload, place.error)
    return payload


def test_ids(path: str, text: str) -> list[str]:
    """The ids of the tests in a file: functions, and methods of classes."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.append(f"{path}::{node.name}")
        if isinstance(node, ast.ClassDef):
            methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            found += [f"{path}::{node.name}::{name}" for name in methods if name.startswith("test_")]
    return found
