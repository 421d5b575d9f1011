"""Runs in the sandbox, given to python3 as its program, and runs the tests of a folder task.

What it does: `run_script`, a test script; `run_pytest`, pytest on a folder. What the tests start has this process's own
user, so this process can't be looked into, and no other can open what it writes to: a script prints into a socket
(which can't be opened by way of /proc), and the report of pytest is signed with a key that is nowhere else.
What it leaves out: what the results mean (`verdicts.py`). Standard library alone, and pytest.
"""

import ctypes
import hashlib
import hmac
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

PR_SET_DUMPABLE = 4
WHY_CHARS, BYTES = 300, 65536
NOT_FOUND = 127  # as bash's exit code where a program is missing


def hide():
    """Keep other processes of this user from this one's memory, open files and environment."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def run_script(path):
    """Run a bash script; its output goes to stdout, its exit code or signal becomes this process's."""
    hide()
    ours, theirs = socket.socketpair()
    command = ["/usr/bin/bash", "--noprofile", "--norc", path]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs)
    theirs.close()
    while True:
        ended = child.poll() is not None  # what it left running may hold the socket for long
        part = ours.recv(BYTES) if select.select([ours], [], [], 0 if ended else 0.02)[0] else None
        if part:
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        elif ended:
            break
        elif part == b"":  # nobody holds it any more
            child.wait()
    if child.returncode < 0:
        os.kill(os.getpid(), -child.returncode)
    os._exit(child.returncode)


def run_pytest(folder, report, key):
    """Run pytest on a folder; what came out is written to the file `report`, behind its signature."""
    hide()
    try:
        import pytest
    except ImportError:
        sys.exit(NOT_FOUND)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    results = []

    class Plugin:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.failed:
                results.append([report.nodeid, False, str(report.longrepr)[-WHY_CHARS:]])

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            skipped = report.skipped and not hasattr(report, "wasxfail")
            if not skipped and (report.when == "call" or not report.passed):
                bad = bool(report.failed)
                results.append([report.nodeid, not bad, str(report.longrepr)[-WHY_CHARS:] if bad else ""])

    options = ["--noconftest", "-c", os.devnull, "-p", "no:cacheprovider", "--no-header", "-q", "--rootdir", folder]
    code = int(pytest.main([*options, folder], plugins=[Plugin()]))
    text = json.dumps({"code": code, "results": results})
    with Path(report).open("x") as file:
        file.write(hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest() + text)
    os._exit(0)
