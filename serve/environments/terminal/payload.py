"""The fields of a terminal task beyond those that every task has, and how they are checked.

What it does: `read_payload`, for our task files, for folders, and once more when an episode begins.
What it leaves out: running any of it (`environment.py`, `evaluation.py`).

    files = {"a.txt" = "one\\n", "run.sh" = {text = "echo hi\\n", mode = 0o755}, "x.bin" = {base64 = "AAE="}}
    setup = "git init -q repo"        # bash, in /work, as the policy's own user; an exit code but 0 is a failure
    checks = [{name = "n holds 3", run = 'says n 3'}]      # bash, in /work, after the episode: see `checks.sh`

A check may have `timeout_s`, and `guard = true` where it holds already before anything is done (a file that must stay
as it was): it counts as passed only beside another that passed, so that doing nothing earns nothing.

In place of `checks`, a task from a folder has `tests`: files that are written when the episode is over, of which
`test.sh` is run.
"""

import base64
import binascii
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from serve.environments.tasks import TaskError

Fail = Callable[[str, str], TaskError]  # (field, what is wrong) -> the error to raise

CHECK_S = 10.0  # time limit of a check that names none
TESTS_S = 120.0  # of a test script
SETUP_S = 30.0  # of a set-up script
KNOWN = ("files", "setup", "checks", "tests")


def read_payload(own: dict[str, Any], fail: Fail) -> dict[str, Any]:
    """The payload in full, as JSON; reading it again gives the same.

    Raises:
        TaskError: names the field.
    """
    if unknown := sorted(set(own) - set(KNOWN)):
        raise fail(unknown[0], f"unknown; a terminal task has {', '.join(KNOWN)}")
    setup = own.get("setup", "")
    if not isinstance(setup, str):
        raise fail("setup", f"{setup!r}: a bash script as text is needed")
    payload: dict[str, Any] = {"files": read_files(own.get("files", {}), "files", fail), "setup": setup}
    if ("checks" in own) == ("tests" in own):
        raise fail("checks", 'either checks = [{name = "...", run = "..."}] or tests is needed')
    if "checks" in own:
        return payload | {"checks": _checks(own["checks"], fail)}
    return payload | {"tests": _tests(own["tests"], fail)}


def read_files(files: Any, name: str, fail: Fail) -> dict[str, dict[str, Any]]:
    """Path to {"text" or "base64", "mode"}."""
    if not isinstance(files, dict):
        raise fail(name, f"{files!r}: a table of paths and contents is needed")
    return {path: _file(path, value, name, fail) for path, value in files.items()}


def _file(path: str, value: Any, name: str, fail: Fail) -> dict[str, Any]:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or path.endswith("/") or ".." in parts or "\0" in path:
        raise fail(name, f"{path!r}: a path below /work is needed, without '..'")
    value = {"text": value} if isinstance(value, str) else value
    if (
        not isinstance(value, dict)
        or len({"text", "base64"} & set(value)) != 1
        or set(value) - {"text", "base64", "mode"}
    ):
        raise fail(name, f'{path!r}: a text, or {{text = "..." or base64 = "...", mode = 0o755}}, is needed')
    mode = value.get("mode", 0o644)
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise fail(name, f"{path!r}: mode {mode!r} is not within 0 and 0o777")
    kind = "text" if "text" in value else "base64"
    try:
        contents({kind: value[kind]})
    except (binascii.Error, ValueError, AttributeError, TypeError) as error:
        raise fail(name, f"{path!r}: {kind} can't be read: {error}") from error
    return {kind: value[kind], "mode": mode}


def contents(file: dict[str, Any]) -> bytes:
    """What stands in a file of a payload."""
    return base64.b64decode(file["base64"], validate=True) if "base64" in file else file["text"].encode()


def _checks(checks: Any, fail: Fail) -> list[dict[str, Any]]:
    if not isinstance(checks, list) or not checks:
        raise fail("checks", f"{checks!r}: a list of one or more checks is needed")
    read, names = [], set()
    for check in checks:
        if not isinstance(check, dict) or set(check) - {"name", "run", "timeout_s", "guard"}:
            raise fail(
                "checks", f'{check!r}: {{name = "...", run = "..."}} is needed, with timeout_s or guard if need be'
            )
        for field in ("name", "run"):
            if not isinstance(check.get(field), str) or not check[field].strip():
                raise fail("checks", f"{field} = {check.get(field)!r}: a text is needed")
        if check["name"] in names:
            raise fail("checks", f"name {check['name']!r} stands twice")
        if not isinstance(check.get("guard", False), bool):
            raise fail("checks", f"guard = {check['guard']!r}: true or false is needed")
        names.add(check["name"])
        timeout_s = _seconds(check, CHECK_S, "checks", fail)
        own = {"name": check["name"], "run": check["run"], "timeout_s": timeout_s, "guard": check.get("guard", False)}
        read.append(own)
    if all(check["guard"] for check in read):
        raise fail("checks", "all are guards: at least one must look for what the task asks")
    return read


def _tests(tests: Any, fail: Fail) -> dict[str, Any]:
    if not isinstance(tests, dict) or set(tests) - {"files", "timeout_s", "packages"}:
        raise fail("tests", f"{tests!r}: a table of files, timeout_s and packages is needed")
    files = read_files(tests.get("files", {}), "tests", fail)
    if "test.sh" not in files:
        raise fail("tests", "test.sh is missing")
    packages = tests.get("packages", [])
    if not isinstance(packages, list) or not all(isinstance(one, str) for one in packages):
        raise fail("tests", f"packages = {packages!r}: a list of names is needed")
    return {"files": files, "timeout_s": _seconds(tests, TESTS_S, "tests", fail), "packages": packages}


def _seconds(table: dict[str, Any], default: float, name: str, fail: Fail) -> float:
    value = table.get("timeout_s", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise fail(name, f"timeout_s = {value!r}: a number above 0, up to 3600, is needed")
    return float(value)
