"""The fields of a terminal task beyond those that every task has, and how they are checked.

What it does: `read_payload`, for our task files, for folders, and once more when an episode begins. It takes any value
and names the field that is at fault.
What it leaves out: running any of it (`environment.py`, `evaluation.py`).

    files = {"a.txt" = "one\\n", "run.sh" = {text = "echo hi\\n", mode = 0o755}, "x.bin" = {base64 = "AAE="}}
    setup = "git init -q repo"        # bash, in /work, as the policy's own user; an exit code but 0 is a failure
    checks = [{name = "n holds 3", run = 'says n 3'}]      # bash, in /work, after the episode: see `checks.sh`

A check may have `timeout_s`, and `guard = true` where it holds already before anything is done (a file that must stay
as it was): it counts as passed only beside another that passed, so that doing nothing earns nothing.

In place of `checks`, a task from a folder has `tests`: files that are written when the episode is over, of which
`test.sh` is run, or pytest where there is none.
"""

import base64
import binascii
import re
import reprlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from serve.environments.sandbox import PACKAGE_NAME
from serve.environments.tasks import TaskError

Fail = Callable[[str, str], TaskError]  # (field, what is wrong) -> the error to raise

CHECK_S = 10.0  # time limit of a check that names none
TESTS_S = 120.0  # of a test script
SETUP_S = 30.0  # of a set-up script
KNOWN = ("files", "setup", "checks", "tests")
PYTEST_FILE = re.compile(r"test_[^/]*\.py")
NAME_BYTES, PATH_BYTES = 255, 3000  # of a file's name, and of its path
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 120


def brief(value: Any) -> str:
    """A value as messages show it: short, however large or deep it is."""
    return _BRIEF.repr(value)


def is_text(value: Any) -> bool:
    """Whether it is a text that can be written to a file."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def read_payload(own: dict[str, Any], fail: Fail) -> dict[str, Any]:
    """The payload in full, as JSON; reading it again gives the same.

    Raises:
        TaskError: names the field.
    """
    if not isinstance(own, dict):
        raise fail("payload", f"{brief(own)}: a table of {', '.join(KNOWN)} is needed")
    if unknown := sorted(set(own) - set(KNOWN)):
        raise fail(unknown[0], f"unknown; a terminal task has {', '.join(KNOWN)}")
    setup = own.get("setup", "")
    if not is_text(setup):
        raise fail("setup", f"{brief(setup)}: a bash script as text is needed")
    payload: dict[str, Any] = {"files": read_files(own.get("files", {}), "files", fail), "setup": setup}
    if ("checks" in own) == ("tests" in own):
        raise fail("checks", 'either checks = [{name = "...", run = "..."}] or tests is needed')
    if "checks" in own:
        return payload | {"checks": _checks(own["checks"], fail)}
    return payload | {"tests": _tests(own["tests"], fail)}


def read_files(files: Any, name: str, fail: Fail) -> dict[str, dict[str, Any]]:
    """Path to {"text" or "base64", "mode"}."""
    if not isinstance(files, dict):
        raise fail(name, f"{brief(files)}: a table of paths and contents is needed")
    read = {path: _file(path, value, name, fail) for path, value in files.items()}
    places: dict[PurePosixPath, str] = {}
    for path in read:
        if (other := places.setdefault(PurePosixPath(path), path)) is not path:
            raise fail(name, f"{path!r}: it is the same file as {other!r}")
    for place, path in places.items():
        if above := next((places[one] for one in place.parents if one in places), None):
            raise fail(name, f"{path!r}: {above!r} is a file, so nothing can lie in it")
    return read


def _file(path: str, value: Any, name: str, fail: Fail) -> dict[str, Any]:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or path.endswith("/") or ".." in parts or "\0" in path:
        raise fail(name, f"{brief(path)}: a path below /work is needed, without '..'")
    if not is_text(path) or len(path.encode()) > PATH_BYTES or any(len(one.encode()) > NAME_BYTES for one in parts):
        raise fail(name, f"{brief(path)}: a path of {PATH_BYTES} bytes at most is needed, {NAME_BYTES} in each name")
    value = {"text": value} if isinstance(value, str) else value
    if (
        not isinstance(value, dict)
        or len({"text", "base64"} & set(value)) != 1
        or set(value) - {"text", "base64", "mode"}
    ):
        raise fail(name, f'{path!r}: a text, or {{text = "..." or base64 = "...", mode = 0o755}}, is needed')
    mode = value.get("mode", 0o644)
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise fail(name, f"{path!r}: mode {brief(mode)} is not within 0 and 0o777")
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
        raise fail("checks", f"{brief(checks)}: a list of one or more checks is needed")
    read, names = [], set()
    for check in checks:
        if not isinstance(check, dict) or set(check) - {"name", "run", "timeout_s", "guard"}:
            raise fail(
                "checks", f'{brief(check)}: {{name = "...", run = "..."}} is needed, with timeout_s or guard if need be'
            )
        for field in ("name", "run"):
            if not is_text(check.get(field)) or not check[field].strip():
                raise fail("checks", f"{field} = {brief(check.get(field))}: a text is needed")
        if check["name"] in names:
            raise fail("checks", f"name {check['name']!r} stands twice")
        if not isinstance(check.get("guard", False), bool):
            raise fail("checks", f"guard = {brief(check['guard'])}: true or false is needed")
        names.add(check["name"])
        timeout_s = _seconds(check, CHECK_S, "checks", fail)
        own = {"name": check["name"], "run": check["run"], "timeout_s": timeout_s, "guard": check.get("guard", False)}
        read.append(own)
    if all(check["guard"] for check in read):
        raise fail("checks", "all are guards: at least one must look for what the task asks")
    return read


def _tests(tests: Any, fail: Fail) -> dict[str, Any]:
    if not isinstance(tests, dict) or set(tests) - {"files", "timeout_s", "packages"}:
        raise fail("tests", f"{brief(tests)}: a table of files, timeout_s and packages is needed")
    files = read_files(tests.get("files", {}), "tests", fail)
    if "test.sh" not in files and not any(map(PYTEST_FILE.fullmatch, files)):
        raise fail("tests", "test.sh is missing, and there is no test_*.py for pytest")
    packages = tests.get("packages", [])
    if not isinstance(packages, list | tuple):
        raise fail("tests", f"packages = {brief(packages)}: a list of names is needed")
    for one in packages:
        if not isinstance(one, str) or not PACKAGE_NAME.fullmatch(one):
            raise fail("tests", f"packages: {brief(one)}: a name of letters, digits, '_', '.', '-' is needed")
    return {"files": files, "timeout_s": _seconds(tests, TESTS_S, "tests", fail), "packages": list(packages)}


def _seconds(table: dict[str, Any], default: float, name: str, fail: Fail) -> float:
    value = table.get("timeout_s", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise fail(name, f"timeout_s = {brief(value)}: a number above 0, up to 3600, is needed")
    return float(value)
