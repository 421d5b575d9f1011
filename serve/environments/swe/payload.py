"""What a SWE task carries besides its issue text, from the task files of ours and from rows of others alike.

What it does: `Payload` and `read_payload`, which checks a task's payload; `new_file_patch`, the patch that adds a file;
`patch_paths`, the files that a patch touches.
What it leaves out: where payloads come from (`shipped.py`, `rows.py`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serve.environments.tasks import TaskError
from serve.environments.terminal.payload import brief, is_text

TEST_S = 60.0  # for one run of the listed tests
OWN_BUGS = "bug"  # the field that only our own repositories have
PATCH_PATH = re.compile(r"^(?:---|\+\+\+) (?:[ab]/([^\t\n]+)|\"[ab]/([^\"\n]+)\")", re.MULTILINE)
RENAMED = re.compile(r"^rename (?:from|to) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A repository at a commit, and the tests that judge a patch of it."""

    repository: str  # "tally", or "owner/name" below the caller's folder
    base_commit: str  # empty for our own, whose commit is made
    bug: tuple[tuple[str, str, str], ...]  # (path, good text, bad text); of our own only
    test_patch: str  # a diff that brings the tests
    fail_to_pass: tuple[str, ...]  # "tests/test_a.py::test_b"
    pass_to_pass: tuple[str, ...]
    test_arguments: tuple[str, ...]  # of pytest, besides the files
    patch: str  # a diff that solves the task, where one is known
    test_s: float


def read_payload(value: dict[str, Any], error: Callable[[str, str], Exception]) -> Payload:
    """The payload of a task.

    Raises:
        what `error(field, message)` makes.
    """
    if not isinstance(value, dict):
        raise error("payload", f"{brief(value)}: a table of fields is needed")
    for name in ("repository", "base_commit", "test_patch", "patch"):
        if not is_text(value.get(name, "")):
            raise error(name, f"{brief(value[name])}: a text is needed")
    bug = value.get(OWN_BUGS, [])
    for one in bug if isinstance(bug, list | tuple) else [bug]:
        if not isinstance(one, list | tuple) or len(one) != 3 or not all(map(is_text, one)):
            raise error(OWN_BUGS, f"{brief(one)}: a list of [path, good text, bad text] is needed")
    arguments = value.get("test_arguments", [])
    if not isinstance(arguments, list | tuple) or not all(map(is_text, arguments)):
        raise error("test_arguments", f"{brief(arguments)}: a list of texts is needed")
    if not value.get("repository"):
        raise error("repository", "the name of a repository is needed")
    if not bug and not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", value.get("base_commit", "")):
        raise error(
            "base_commit", f"{brief(value.get('base_commit'))}: a whole commit id (40 hexadecimal digits) is needed"
        )
    lists = {name: _test_ids(value.get(name, []), name, error) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    if not lists["FAIL_TO_PASS"]:
        raise error("FAIL_TO_PASS", "at least one test is needed")
    if both := sorted(set(lists["FAIL_TO_PASS"]) & set(lists["PASS_TO_PASS"])):
        raise error("PASS_TO_PASS", f"{both[0]!r} is in FAIL_TO_PASS too")
    test_s = value.get("test_s", TEST_S)
    if isinstance(test_s, bool) or not isinstance(test_s, int | float) or not 0 < test_s <= 86400:
        raise error("test_s", f"{brief(test_s)}: seconds above 0 are needed")
    return Payload(
        repository=value["repository"], base_commit=value.get("base_commit", ""), bug=tuple(map(tuple, bug)),
        test_patch=value.get("test_patch", ""), fail_to_pass=lists["FAIL_TO_PASS"], pass_to_pass=lists["PASS_TO_PASS"],
        test_arguments=tuple(arguments), patch=value.get("patch", ""), test_s=float(test_s),
    )  # fmt: skip


def of_task(task_payload: dict[str, Any], source: str) -> Payload:
    """The payload of a task that was checked when it was loaded, or came from elsewhere.

    Raises:
        TaskError: names the field.
    """
    return read_payload(task_payload, lambda name, what: TaskError(f"{source}: {name}: {what}"))


def _test_ids(value: Any, name: str, error: Callable[[str, str], Exception]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise error(name, f"{brief(value)}: a list of test ids is needed")
    for one in value:
        path = one.partition("::")[0] if is_text(one) else ""
        if not path.endswith(".py") or "::" not in one or path.startswith("/") or ".." in path.split("/"):
            raise error(name, f"{brief(one)}: a test id has the form tests/test_a.py::test_b")
    return tuple(dict.fromkeys(value))


def new_file_patch(path: str, text: str) -> str:
    """A diff that adds a file."""
    lines = text.removesuffix("\n").split("\n")
    added = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{added}"


def patch_paths(patch: str) -> tuple[str, ...]:
    """The files that a diff changes, adds, removes or renames."""
    found = [one or two for one, two in PATCH_PATH.findall(patch)] + RENAMED.findall(patch)
    return tuple(sorted(set(found)))
