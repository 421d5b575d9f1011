"""Runs in the sandbox where a patch is judged: applies it, puts the tests in place, runs them, says what came out.

What it does: as `python3 -I inside.py FOLDER` it reads a request from stdin, changes the fresh checkout, and starts
itself once more as the process in which pytest runs. That process tells it each result through a pipe, in lines that
begin with a token. What came out is written to FOLDER/result behind another token, which only this process and the
host know. Nothing that tested code prints is read as a result.
What it leaves out: what the results are worth (`evaluation.py`).

Code that runs in one process with its tests can, with effort, make them say anything. What is closed: changed tests,
conftest files and settings of test runners (put back to the base), leaving early (a run without its end counts for
nothing), printing results, and meddling with pytest or unittest: tests that must fail stand among the real ones, and
where one of them passes, nothing counts. Only the standard library is imported here, and pytest in the second process.
"""

import base64
import contextlib
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
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


def judge(told, wanted):
    """Which of the wanted tests passed, why others did not, and whether the run can be believed."""
    results, reasons, wardens, ended = {}, {}, {}, False
    for one in told:
        if "start" in one:
            continue
        if "end" in one:
            ended = True
        elif "warden" in one:
            wardens[one["warden"]] = False
        else:
            name, good = one["id"], one["good"]
            if name in wardens:
                wardens[name] = wardens[name] or one["failed"]
                continue
            results[name] = results.get(name, True) and good
            if not good:
                reasons.setdefault(name, one["why"])
    passed, details = [], {}
    for name in wanted:
        own = [one for one in results if one == name or one.startswith(name + "[")]
        passed.append(bool(own) and all(results[one] for one in own))
        if not passed[-1] and len(details) < FEW:
            bad = next((one for one in own if not results[one]), None)
            details[name] = reasons.get(bad, "") if bad else missing(name, reasons)
    return {
        "passed": passed, "details": details, "ended": ended, "wardens": len(wardens),
        "honest": bool(wardens) and all(wardens.values()), "reported": len(results),
    }  # fmt: skip


def missing(name, reasons):
    """Why a test has no result: its file could not be collected, or it is not there."""
    file = name.partition("::")[0]
    return reasons.get(file, "the test was not run")


def main(folder):
    """Answer one request."""
    request = json.load(sys.stdin)
    request["folder"] = folder
    try:
        put_back = apply_policy(base64.b64decode(request["patch"]), request["test_files"]) if request["patch"] else []
        apply_tests(request["test_patch"])
    except Refused as refused:
        answer = {"stage": refused.args[0], "why": refused.args[1][:CHARS]}
    else:
        told, timed_out, said = run_tests(request)
        answer = {"stage": "tests" if {"start": True} in told else "start", **judge(told, request["wanted"])}
        answer |= {"timed_out": timed_out, "said": said, "put_back": put_back[:20]}
    Path(folder, "result").write_text(request["token"] + json.dumps(answer))


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
    always = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(REPO), "-q", "--no-header"]
    if files:
        pytest.main([*told["arguments"], *always, *files], plugins=[make_plugin(pytest, tell)])
    tell({"end": True})
    os._exit(0)


def fail_always(*_):
    """A test that must fail."""
    assert os.sep == "nothing"


def make_plugin(pytest, tell):
    """The plugin; what it needs is held by it alone, taken before any tested code was there."""
    kind, choice, token_hex = pytest.Function, secrets.choice, secrets.token_hex

    class Plugin:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items):
            parents = {}
            for item in items:
                if isinstance(item, kind):
                    parents.setdefault(item.parent.nodeid, item)
            for item in parents.values():
                warden = self.warden(item)
                tell({"warden": warden.nodeid})
                places = [place for place, one in enumerate(items, 1) if one.parent is item.parent]
                items.insert(choice(places), warden)

        def warden(self, item):
            name = f"test_{token_hex(8)}"
            function = fail_always
            if item.cls is not None:
                setattr(item.cls, name, fail_always)
                function = getattr(item.cls, name)
            return type(item).from_parent(item.parent, name=name, callobj=function)

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
