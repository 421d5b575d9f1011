"""Our own tasks: each one's base fails as it says, its expert solves it, its wrong solution does not."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from serve.environments.protocol import EnvironmentFailed
from serve.environments.swe import shipped
from serve.environments.swe.payload import of_task
from serve.environments.swe.repository import shipped as shipped_base
from serve.environments.swe.repository import source_files, with_bug
from serve.environments.tasks import Place, Task, TaskError
from tests.unit.serve.environments.swe.playing import play

AT_ONCE = 3
MANY_STEPS = 4


# Runs pytest in each of the folders given, in a forked process each, as importing it takes longest.
BASES = """
import json, os, sys
import pytest

class Noted:
    def __init__(self): self.good = {}
    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("[")[0]
        self.good[name] = self.good.get(name, True) and report.passed

for folder in sys.argv[1:]:
    if os.fork() == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        noted = Noted()
        pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", folder, "tests"], plugins=[noted])
        with open("results.json", "w") as file:
            json.dump(noted.good, file)
        os._exit(0)
    os.wait()
"""


def test_every_base_fails_as_it_says(tmp_path: Path) -> None:
    for task in shipped.load():
        payload = of_task(task.payload, task.source)
        files = with_bug(source_files(payload.repository), payload.bug)
        hidden = "".join(line[1:] for line in payload.test_patch.splitlines(keepends=True)[5:])
        for path, text in {**files, shipped.HIDDEN: hidden}.items():
            (tmp_path / task.task_id / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / task.task_id / path).write_text(text)
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-P", "-B", "-c", BASES]
    folders = [str(tmp_path / task.task_id) for task in shipped.load()]
    halves = [
        subprocess.Popen([*command, *folders[first::2]], cwd=tmp_path, env=alone, stdout=subprocess.DEVNULL)
        for first in (0, 1)
    ]
    assert [half.wait() for half in halves] == [0, 0]
    for task in shipped.load():
        good = json.loads((tmp_path / task.task_id / "results.json").read_text())
        assert sorted(name for name in good if not good[name]) == sorted(task.payload["FAIL_TO_PASS"]), task.task_id
        assert sorted(name for name in good if good[name]) == sorted(task.payload["PASS_TO_PASS"]), task.task_id


async def faults_of(task: Task, room: asyncio.Semaphore) -> list[str]:
    """What is wrong with a task's solutions."""
    async with room:
        try:
            solved, _ = await play(task, task.expert)
            wrong, _ = await play(task, task.wrong)
        except (TaskError, EnvironmentFailed) as error:
            return [f"{task.task_id}: {error}"]
        found = []
        if solved.score != 1.0 or not solved.solved:
            found.append(f"{task.task_id}: the expert gets {solved}")
        if wrong.score >= 1 or wrong.solved or not wrong.checks[0].passed:
            found.append(f"{task.task_id}: the wrong solution gets {wrong}")
        return found


async def test_every_expert_solves_and_no_wrong_solution_does() -> None:
    room = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(faults_of(task, room) for task in shipped.load()))
    assert [fault for faults in found for fault in faults] == []


def test_how_many_there_are() -> None:
    tasks = shipped.load()
    assert len(tasks) >= 42
    assert len({task.skill for task in tasks}) >= 8
    assert len({task.skill for task in tasks if task.split == "held_out"}) >= 2
    assert sum(len(task.expert) >= MANY_STEPS for task in tasks) >= 10
    assert set(Counter(task.difficulty for task in tasks)) == {1, 2, 3, 4, 5}
    assert len({task.payload["repository"] for task in tasks}) == 10
    assert all(len(task.expert) <= task.limits.steps for task in tasks)


def test_the_easiest_name_file_line_and_replacement() -> None:
    for task in (task for task in shipped.load() if task.difficulty == 1):
        path, line = re.search(r"([\w/]+\.py):(\d+)", task.instruction).groups()
        old, new = re.findall(r"`([^`]+)`", task.instruction)[-2:]
        payload = of_task(task.payload, task.source)
        text = with_bug(source_files(payload.repository), payload.bug)[path]
        assert old in text.split("\n")[int(line) - 1], task.task_id
        assert source_files(payload.repository)[path] == text.replace(old, new), task.task_id


def test_commits_are_always_the_same_and_hold_no_history() -> None:
    task = shipped.load()[0]
    payload = of_task(task.payload, task.source)
    one = shipped_base(payload.repository, payload.bug)
    shipped_base.cache_clear()
    two = shipped_base(payload.repository, payload.bug)
    assert one == two
    assert one.commit != shipped_base(payload.repository, ()).commit


@pytest.mark.parametrize(
    "changed, name, what",
    [
        ({"repository": "nothing"}, "bug", "there is no repository 'nothing'"),
        ({"bug": [{"file": "tally/tokens.py", "good": "no such text", "bad": ""}]}, "bug", "0 times"),
        ({"bug": [{"file": "tally/tokens.py", "good": "e"}]}, "bug", "'bad'"),
        ({"fail_to_pass": ["test_b"]}, "fail_to_pass", "there is no test 'tests/test_issue.py::test_b'"),
        ({"fail_to_pass": 5}, "fail_to_pass", "5: a list of names"),
        ({"fail_to_pass": [5]}, "fail_to_pass", "[5]: a list of names"),
        ({"bug": [5]}, "bug", "not subscriptable"),
        ({"bug": [{"file": ["a"], "good": "a", "bad": "b"}]}, "bug", "unhashable"),
        ({"tests": "def test_a():\n    return " + "(" * 5000 + ")" * 5000}, "bug", "nested"),
        ({"fail_to_pass": []}, "FAIL_TO_PASS", "at least one"),
        ({"tests": "def test_a(: pass"}, "bug", "invalid syntax"),
        ({"extra": 1}, "extra", "unknown"),
    ],
)
def test_a_fault_in_a_task_file_names_its_field(tmp_path, changed: dict, name: str, what: str) -> None:
    fields = {
        "repository": "tally", "tests": "def test_a() -> None:\n    pass\n", "fail_to_pass": ["test_a"],
        "bug": [{"file": "tally/tokens.py", "good": '[eE][+-]?', "bad": "[eE]"}],
    }  # fmt: skip
    place = Place(tmp_path / "x.toml", ("[[task]]",), 1)
    assert shipped.read_fields(dict(fields), place)["FAIL_TO_PASS"] == ["tests/test_issue.py::test_a"]
    with pytest.raises(TaskError, match=re.escape(what)) as caught:
        shipped.read_fields({**fields, **changed}, place)
    assert f"x.toml:1: {name}: " in str(caught.value)
