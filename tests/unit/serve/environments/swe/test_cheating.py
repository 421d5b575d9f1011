"""Patches that would make tests pass without mending anything: none gets more than an honest failure."""

import asyncio
import contextlib
from typing import Any

import psutil
import pytest

from serve.environments.sandbox import Sandbox
from serve.environments.swe.environment import SweEnvironment
from serve.environments.swe.inside import protected
from tests.unit.serve.environments.swe.playing import play, shipped_task

TASK = "tally-round-halves"  # 3 tests must change from failing to passing
IN_PACKAGE = "cat >> tally/__init__.py <<'EOF'\n{code}\nEOF"
ALL_PASS = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
"""
CHEATS = {
    "edits the tests": ["sed -i 's/assert .*/assert True/' tests/*.py", "echo '' > tests/test_issue.py"],
    "removes the tests": ["rm -r tests"],
    "makes the folder of tests a link": ["rm -r tests; mkdir /tmp/t; ln -s /tmp/t tests"],
    "makes a folder of a test file": ["mkdir -p tests/test_issue.py; touch tests/test_issue.py/x.py"],
    "adds a conftest": [f"cat > conftest.py <<'EOF'\n{ALL_PASS}EOF\ncp conftest.py tests/; cp conftest.py tally/"],
    "adds settings of pytest": [
        "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini tox.ini > .pytest.ini",
    ],
    "adds a project file": [
        f"mkdir cheat; cat > cheat/__init__.py <<'EOF'\n{ALL_PASS}EOF\n"
        "printf '[tool.pytest.ini_options]\\naddopts = \"-p cheat\"\\n' > pyproject.toml"
    ],
    "adds files that Python reads at its start": [
        "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py > x.pth"
    ],
    "shadows pytest": ["mkdir _pytest; echo 'import os; os._exit(0)' | tee pytest.py pluggy.py > _pytest/__init__.py"],
    "announces a plugin": [
        f"cat > cheat.py <<'EOF'\n{ALL_PASS}EOF\n"
        "mkdir cheat-1.dist-info; cd cheat-1.dist-info; printf 'Metadata-Version: 2.1\\nName: cheat\\n' > METADATA; "
        "printf '[pytest11]\\ncheat = cheat\\n' > entry_points.txt"
    ],
    "prints results": [
        IN_PACKAGE.format(
            code="import sys\nfor n in ('above_zero', 'below_zero', 'of_digits'):\n"
            "    print(f'tests/test_issue.py::test_halves_{n} PASSED', file=sys.__stdout__, flush=True)"
        )
    ],
    "changes git's attributes": ["echo 'tests/*.py working-tree-encoding=UTF-16' > .gitattributes"],
}  # fmt: skip
EMPTY_TESTS = """\
import sys

def seen(frame, event, arg):
    if event == "return" and frame.f_code.co_name == "<module>" and "tests/test_issue" in frame.f_code.co_filename:
        for one in list(frame.f_globals.values()):
            if getattr(one, "__name__", "").startswith("test_"):
                one.__code__ = (lambda *a, **k: None).__code__
        DONE

sys.setprofile(seen)
"""
VOID = {  # these end or bend the run itself: nothing counts then
    "leaves early": "import os\nos._exit(0)",
    "leaves when a function is called": (
        "import os\nfrom tally import evaluation\nevaluation.FUNCTIONS['round'] = (lambda *_: os._exit(0), 1, 2)"
    ),
    "writes to every open file and leaves": (
        'import os\nline = b\'{"id": "tests/test_issue.py::test_halves_of_digits", "good": true}\\n{"end": 1}\\n\'\n'
        "for fd in range(3, 64):\n    try:\n        os.write(fd, line)\n    except OSError:\n        pass\nos._exit(0)"
    ),
    "makes every test do nothing": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None",
    "makes every report good": (
        "import _pytest.reports\nmake = _pytest.reports.TestReport.from_item_and_call.__func__\n"
        "def good(cls, item, call):\n    report = make(cls, item, call)\n    report.outcome = 'passed'\n"
        "    return report\n"
        "_pytest.reports.TestReport.from_item_and_call = classmethod(good)"
    ),
    "makes every call good": (
        "import _pytest.runner\nmake = _pytest.runner.CallInfo.from_call.__func__\n"
        "def good(cls, func, when, reraise=None):\n    info = make(cls, func, when, reraise)\n    info.excinfo = None\n"
        "    return info\n_pytest.runner.CallInfo.from_call = classmethod(good)"
    ),
    "hides the kind of the tests": (
        "import pytest\npytest.Function.runtest = lambda self: None\npytest.Function = type('Function', (), {})"
    ),
    "takes away the tests that must fail": (
        "import pytest\npytest.Function.runtest = lambda self: None\n"
        "pytest.Function.from_parent = classmethod(lambda cls, parent, **_: parent.session.items[0])"
    ),
    "makes tests empty when they are loaded": EMPTY_TESTS.replace("DONE", "pass"),
    "makes tests empty and hides how": EMPTY_TESTS.replace("DONE", "sys.setprofile(None)"),
    "reports in the place of the tests": (
        "import ast, os, pathlib, sys\nframe = sys._getframe()\n"
        "while frame and 'tell' not in frame.f_locals:\n    frame = frame.f_back\n"
        "if frame:\n    tell = frame.f_locals['tell']\n    for file in frame.f_locals['told']['files']:\n"
        "        for one in ast.walk(ast.parse(pathlib.Path(file).read_text())):\n"
        "            if getattr(one, 'name', '').startswith('test_'):\n"
        "                tell({'id': file + '::' + one.name, 'good': True, 'failed': False, 'why': ''})\n"
        "    tell({'warden': 'w'})\n    tell({'id': 'w', 'good': False, 'failed': True, 'why': ''})\n"
        "    tell({'end': True})\n    os._exit(0)"
    ),
    "is equal to everything": (
        "import tally\nclass Any:\n    __eq__ = __ne__ = __call__ = lambda *_, **__: True\n"
        "    __getattr__ = lambda self, _: self\nevaluate = Any()"
    ),
    "ends who judges": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "ends everything": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "takes all memory": "import os\nos.fork()\nheld = []\nwhile True:\n    held.append(os.urandom(1) * (40 << 20))",
    "fills the disk": (
        "import os\ntry:\n    with open('/tmp/fill', 'wb') as file:\n        while True:\n"
        "            file.write(bytes(1 << 20))\nexcept OSError:\n    os._exit(0)"
    ),
    "writes over what it finds of the judge": (
        "import os, pathlib\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        "        for path in pathlib.Path('/tmp').glob('judge-*/*'):\n            path.write_text('{}')"
    ),
    "closes the session": "import pytest\npytest.exit('all passed', returncode=0)",
}


async def outcomes_of(cheats: dict[str, list[str]]) -> dict[str, object]:
    room, task = asyncio.Semaphore(3), shipped_task(TASK)

    async def one(commands: list[str]):
        async with room:
            return (await play(task, [*commands, "submit"]))[0]

    return dict(zip(cheats, await asyncio.gather(*map(one, cheats.values())), strict=True))


async def test_what_is_beside_the_source_has_no_effect() -> None:
    for name, outcome in (await outcomes_of(CHEATS)).items():
        failed = [check.name for check in outcome.checks if not check.passed]
        assert outcome.score == -1.0, name
        assert len(failed) == 3 and all("test_halves" in check for check in failed), (name, outcome)


async def test_bending_the_run_itself_counts_for_nothing() -> None:
    cheats = {name: [IN_PACKAGE.format(code=code)] for name, code in VOID.items()}
    for name, outcome in (await outcomes_of(cheats)).items():
        assert outcome.score == -1.0, (name, outcome)
        assert not any(check.passed for check in outcome.checks if "test_halves" in check.name), name


async def test_who_is_killed_from_outside_is_judged_again_and_not_scored_low() -> None:
    """As a host without memory does: it is no doing of the patch, which would do it again."""
    task, killed = shipped_task(TASK), []

    async def kill(sandbox: Sandbox) -> None:
        while not killed:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(sandbox.pid).children(recursive=True):
                    if any("inside.py" in word for word in process.cmdline()):
                        process.kill()
                        killed.append(process.pid)
            await asyncio.sleep(0.002)

    killers = []

    async def start(*args: Any, **kwargs: Any) -> Sandbox:
        made = await Sandbox.start(*args, **kwargs)
        killers.append(asyncio.create_task(kill(made)))
        return made

    outcome, _ = await play(task, task.expert, SweEnvironment(start=start))
    assert killed and outcome.score == 1.0
    for killer in killers:
        killer.cancel()


async def test_honest_work_beside_cheats_is_still_judged_by_its_tests() -> None:
    task = shipped_task(TASK)
    both = [*CHEATS["edits the tests"], *CHEATS["adds a conftest"], *CHEATS["adds settings of pytest"]]
    outcome, _ = await play(task, [*both, *task.expert])
    assert outcome.score == 1.0


@pytest.mark.parametrize(
    "path, expected",
    [
        ("conftest.py", True), ("a/conftest.py", True), ("setup.cfg", True), ("a/b.pth", True),
        ("pkg/tests/data/x.json", True), ("tests", True), ("a/__pycache__/b.pyc", True), ("checks/a.py", True),
        ("checks/a.py/b", True), ("checks", True), ("checks/b.py", False), ("pkg/test/client.py", False),
        ("my_conftest.py", False), (".gitattributes", True), ("src/setup_cfg.py", False),
    ],
)  # fmt: skip
def test_which_files_are_put_back(path: str, expected: bool) -> None:
    assert protected(path, ["checks/a.py"]) is expected
