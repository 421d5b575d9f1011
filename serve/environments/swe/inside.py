"""Runs in the sandbox where a patch is judged: applies it, puts the tests in place, runs them, says what came out.

What it does: as `python3 -I inside.py FOLDER` it reads a request from stdin, changes the fresh checkout, and starts
itself once more as the process in which pytest runs. That process tells it each result through a pipe, in lines that
begin with a token. What came out is written to stdout, once every other process has been ended. Nothing that tested
code prints is read as a result, and this process can't be looked into.
What it leaves out: what the results are worth (`evaluation.py`), and how copies of tests are made (`twins.py`).

Code that runs in one process with its tests can, with effort, make them say anything: leave out what they do, report
in their place, be equal to everything. So copies that must fail stand among the tests (`twins.py`), and only this
process knows which is which: where a test passes, and a copy of it does not fail, nothing counts. Closed besides:
changed tests, conftest files and settings of test runners (put back to the base), leaving early (a run without its end
counts for nothing), printing results, hooks of Python (`sys.setprofile`) that were set before a test begins.

What this can't keep out: guessing which is the test (one of four, for a number or a text; one of two, and told by its
form, for the opposite of an assertion or for another exception), which a patch has to do right for every test that
must be mended; code that looks up what a test that lies in the repository expects, and says that.
"""

import base64
import contextlib
import ctypes
import functools
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

REPO = Path("/work/repo")
GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false")
# files that say how tests are run, or what Python does when it starts; put back to the base wherever they lie
NAMES = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|(site|user)customize\.py|.*\.pth"
    r"|\.gitattributes|\.coveragerc|noxfile\.py"
)
FOLDERS = ("tests", "__pycache__")  # all that lies in them is put back, or removed
FEW, CHARS = 5, 400  # failures that are described, and how long
BYTES = 64 << 20  # of results
END_S = 5.0  # until the kernel has ended what is left
PR_SET_DUMPABLE = 4


class Refused(Exception):
    """A patch that does not apply: (whose it is, what git says)."""


def git(*arguments, stdin=b""):
    """A git command in the checkout."""
    environment = {**os.environ, "GIT_LITERAL_PATHSPECS": "1"}
    return subprocess.run([*GIT, *arguments], cwd=REPO, input=stdin, capture_output=True, env=environment)


def protected(path, test_files):
    """Whether a path that the policy changed is put back to what it was."""
    parts = path.split("/")
    if NAMES.fullmatch(parts[-1]) or any(part in FOLDERS for part in parts):
        return True
    return any(path == file or path.startswith(file + "/") or file.startswith(path + "/") for file in test_files)


def apply_policy(patch, test_files):
    """Apply the policy's patch but for the protected files; which of those it had changed."""
    done = git("apply", "--binary", "--whitespace=nowarn", "-", stdin=patch)
    if done.returncode != 0:
        raise Refused("patch", done.stderr.decode(errors="replace").strip())
    git("add", "--all", "--force")
    changed = git("diff", "--cached", "--name-status", "--no-renames", "-z", "HEAD").stdout.decode(
        "utf-8", "surrogateescape"
    )
    fields = changed.split("\0")[:-1]
    back = [(kind, path) for kind, path in zip(fields[::2], fields[1::2], strict=True) if protected(path, test_files)]
    for kind, path in sorted(back):
        if kind == "A":
            remove(path)
    for kind, path in sorted(back):
        if kind != "A":
            git("checkout", "--quiet", "HEAD", "--", path)
    git("reset", "--quiet")
    return [path for _, path in back]


def remove(path):
    """Remove a file that the policy added, and folders that are empty then."""
    file = REPO / path
    file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the first that is not empty
        for folder in file.relative_to(REPO).parents[:-1]:
            (REPO / folder).rmdir()


def apply_tests(test_patch):
    """Put the tests in place."""
    if test_patch.strip():
        done = git("apply", "--whitespace=nowarn", "-", stdin=test_patch.encode())
        if done.returncode != 0:
            raise Refused("test_patch", done.stderr.decode(errors="replace").strip())


def hide():
    """Keep other processes of this user from this one's memory, open files and environment."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def put_copies(request):
    """Rewrite the files of the listed tests; the names of tests, and the copies that must fail (`twins.plant`)."""
    sys.path.insert(0, str(Path(__file__).parent))
    import twins

    names, copies = {}, {}
    for file in sorted({one.partition("::")[0] for one in request["wanted"]}):
        path = REPO / file
        if path.is_file():
            try:
                text = path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            text, own_names, own_copies = twins.plant(
                file, text, *(request[key] for key in ("failing", "wanted", "ours"))
            )
            path.write_text(text, "utf-8")
            names |= own_names
            copies |= own_copies
    return names, copies


def end_others():
    """End every process here but this one and the first."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        if not {path.name for path in Path("/proc").iterdir() if path.name.isdigit()} - {"1", str(os.getpid())}:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        time.sleep(0.001)


def run_tests(request):
    """Run the files of the wanted tests in a process of their own; what it told, and how it ended."""
    token = secrets.token_hex(16)
    read_fd, write_fd = os.pipe()
    files = sorted({one.partition("::")[0] for one in request["wanted"]})
    told = {"token": token, "fd": write_fd, "files": files, "arguments": request["arguments"]}
    environment = {
        **os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip
    command = [sys.executable, "-P", "-s", str(Path(__file__).resolve())]
    with Path(request["folder"], "output").open("w+b") as output:
        child = subprocess.Popen(
            command, cwd=REPO, env=environment, stdin=subprocess.PIPE,
            stdout=output, stderr=output, pass_fds=(write_fd,), start_new_session=True,
        )  # fmt: skip
        os.close(write_fd)
        child.stdin.write(json.dumps(told).encode())
        child.stdin.close()
        data = collect(child, read_fd, time.monotonic() + request["test_s"])
        timed_out = child.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        output.seek(max(0, output.seek(0, 2) - 3000))
        said = output.read().decode(errors="replace")
    lines = [line.removeprefix(token) for line in data.decode(errors="replace").split("\n") if line.startswith(token)]
    return [json.loads(line) for line in lines], timed_out, said


def collect(child, fd, until):
    """What comes through the pipe until the process has ended, or its time has."""
    os.set_blocking(fd, False)
    parts, size = [], 0
    while size < BYTES and time.monotonic() < until:
        exited = child.poll() is not None
        part = os.read(fd, 1 << 16) if select.select([fd], [], [], 0 if exited else 0.02)[0] else None
        if part:
            parts.append(part)
            size += len(part)
        elif exited:
            break
        elif part == b"":  # it closed its end, and runs on
            time.sleep(0.01)
    return b"".join(parts)


def judge(told, wanted, names, copies):
    """Which of the wanted tests passed, why others did not, and whether the run can be believed.

    Args:
        told: what the second process told.
        wanted: ids of tests.
        names: {the id under which a test ran: its own}.
        copies: {the id of a copy: the tests of which none may have passed where the copy did not fail}.
    """
    results, reasons, failed, ended = {}, {}, set(), False
    for one in told:
        ended = ended or "end" in one
        if "id" not in one:
            continue
        base, bracket, case = one["id"].partition("[")
        if base in copies:
            failed |= {base} if one["failed"] else set()
            continue
        name, good = names.get(base, base) + bracket + case, one["good"]
        results[name] = results.get(name, True) and good
        if not good:
            reasons.setdefault(name, with_own_names(one["why"], names))
    passed, details = [], {}
    for name in wanted:
        own = [one for one in results if one == name or one.startswith(name + "[")]
        passed.append(bool(own) and all(results[one] for one in own))
        if not passed[-1] and len(details) < FEW:
            bad = next((one for one in own if not results[one]), None)
            details[name] = reasons.get(bad, "") if bad else missing(name, reasons)
    passing = {name.partition("[")[0] for name, good in zip(wanted, passed, strict=True) if good}
    return {
        "passed": passed, "details": details, "ended": ended, "copies": len(copies), "reported": len(results),
        "honest": all(copy in failed or not passing.intersection(tests) for copy, tests in copies.items()),
    }  # fmt: skip


def with_own_names(text, names):
    """What pytest says of a test, with its own name."""
    for new, own in names.items():
        text = text.replace(new.rpartition("::")[2], own.rpartition("::")[2])
    return text


def missing(name, reasons):
    """Why a test has no result: its file could not be collected, or it is not there."""
    file = name.partition("::")[0]
    return reasons.get(file, "the test was not run")


def main(folder):
    """Answer one request."""
    hide()
    request = json.load(sys.stdin)
    request["folder"] = folder
    try:
        put_back = apply_policy(base64.b64decode(request["patch"]), request["test_files"]) if request["patch"] else []
        apply_tests(request["test_patch"])
    except Refused as refused:
        answer = {"stage": refused.args[0], "why": refused.args[1][:CHARS]}
    else:
        names, copies = put_copies(request)
        told, timed_out, said = run_tests(request)
        answer = {"stage": "tests" if {"start": True} in told else "start"}
        answer |= judge(told, request["wanted"], names, copies)
        answer |= {"timed_out": timed_out, "said": said, "put_back": put_back[:20]}
    end_others()
    sys.stdout.write(json.dumps(answer))


# ---- the second process ----


def test_process():
    """Run pytest, with a plugin that tells each result."""
    told = json.load(sys.stdin)
    import pytest

    fd, token, write, dumps = told["fd"], told["token"], os.write, json.dumps
    os.set_inheritable(fd, False)

    def tell(value):
        data = f"{token}{dumps(value)}\n".encode()
        while data:
            data = data[write(fd, data) :]

    tell({"start": True})
    sys.path[:0] = [str(path) for path in (REPO / "src", REPO) if path.is_dir()]
    files = [file for file in told["files"] if Path(file).is_file()]
    always = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--maxfail=0", "-q", "--no-header"]
    always += ["--rootdir", str(REPO)]
    if files:
        pytest.main([*told["arguments"], *always, *files], plugins=[make_plugin(pytest, tell)])
    tell({"end": True})
    os._exit(0)


def make_plugin(pytest, tell):
    """The plugin; what it needs is held by it alone, taken before any tested code was there."""
    fail = pytest.fail
    hooks = [sys.getprofile, sys.gettrace, lambda: threading._profile_hook, lambda: threading._trace_hook]
    if hasattr(sys, "monitoring"):
        hooks += [functools.partial(sys.monitoring.get_tool, number) for number in range(6)]

    class Plugin:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self):
            if any(hook() for hook in hooks):
                fail("a hook of Python (sys.setprofile, sys.settrace, sys.monitoring) was set", pytrace=False)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.failed:
                tell({"id": report.nodeid, "good": False, "failed": True, "why": str(report.longrepr)[-CHARS:]})

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            expected = report.skipped and hasattr(report, "wasxfail") and "xfail" in report.keywords  # by its mark
            good = report.passed or expected
            if report.when != "call" and report.passed:
                return
            why = "" if good else str(report.longrepr)[-CHARS:]
            tell({"id": report.nodeid, "good": bool(good), "failed": bool(report.failed), "why": why})

    return Plugin()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        test_process()
