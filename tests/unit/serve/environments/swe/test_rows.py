"""Rows in SWE-bench's form, over repositories made here."""

import json
import os
import subprocess
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import Sandbox
from serve.environments.swe import SweEnvironment, evaluation
from serve.environments.swe.payload import patch_paths
from serve.environments.swe.repository import at_commit
from serve.environments.swe.rows import load_rows
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.swe.playing import play

BAD = "def add(a, b):\n    return a - b\n\n\ndef zero():\n    return 0\n"
TESTS = """\
import unittest

import pytest

from sums import add, zero


def test_zero():
    assert zero() == 0


@pytest.mark.xfail
def test_not_yet():
    assert zero() == 1
"""
TEST_PATCH = """\
diff --git a/checks/test_sums.py b/checks/test_sums.py
--- a/checks/test_sums.py
+++ b/checks/test_sums.py
@@ -12,3 +12,13 @@ def test_zero():
 @pytest.mark.xfail
 def test_not_yet():
     assert zero() == 1
+
+
+@pytest.mark.parametrize("a, b", [(1, 2), (3, 4)])
+def test_add(a, b):
+    assert add(a, b) == a + b
+
+
+class Case(unittest.TestCase):
+    def test_one(self):
+        self.assertEqual(add(0, 1), 1)
"""
PATCH = """\
diff --git a/src/sums.py b/src/sums.py
--- a/src/sums.py
+++ b/src/sums.py
@@ -1,4 +1,4 @@
 def add(a, b):
-    return a - b
+    return a + b
 
 
"""
MEND = "sed -i 's/a - b/a + b/' src/sums.py"


def git(folder: Path, *arguments: str) -> str:
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("repositories")
    folder = root / "maths__sums"
    for path, text in {"src/sums.py": BAD, "checks/test_sums.py": TESTS, "README": "old"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "README").write_text("new")
    git(folder, "commit", "-qam", "second")
    git(folder, "tag", "base")
    (folder / "src/sums.py").write_text(BAD.replace("a - b", "a + b"))
    git(folder, "commit", "-qam", "the fix")
    return root


@pytest.fixture
def row(repositories: Path) -> dict:
    return {
        "instance_id": "maths__sums-1", "repo": "maths/sums", "problem_statement": "add subtracts",
        "base_commit": git(repositories / "maths__sums", "rev-parse", "base"), "patch": PATCH, "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["checks/test_sums.py::test_add[1-2]", "checks/test_sums.py::Case::test_one"],
        "PASS_TO_PASS": ["checks/test_sums.py::test_zero", "checks/test_sums.py::test_not_yet"],
        "version": "1.0", "environment_setup_commit": "x", "hints_text": "",
    }  # fmt: skip


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_lines_and_parquet_give_the_same_tasks(tmp_path: Path, repositories: Path, row: dict) -> None:
    as_texts = row | {name: json.dumps(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    (task,) = load_rows(written(tmp_path, row), repositories).tasks
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([as_texts]), tmp_path / "rows.parquet")
    (other,) = load_rows(tmp_path / "rows.parquet", repositories).tasks
    assert task.payload == other.payload and task.instruction == "add subtracts"
    assert (task.task_id, task.skill, task.source) == ("maths__sums-1", "maths/sums", f"{tmp_path}/rows.jsonl:1")
    assert other.source == f"{tmp_path}/rows.parquet: row 1"


@pytest.mark.parametrize(
    "field, value, what",
    [
        ("instance_id", "a b", "letters, digits"),
        ("repo", "maths/other", "neither owner__name nor owner/name"),
        ("repo", "../maths__sums", "neither owner__name nor owner/name"),
        ("base_commit", "0" * 40, "has no commit 0000"),
        ("base_commit", "main", "40 hexadecimal digits"),
        ("problem_statement", None, "a text is needed"),
        ("FAIL_TO_PASS", "[", "JSON list"),
        ("FAIL_TO_PASS", [], "at least one"),
        ("FAIL_TO_PASS", ["test_a (sums.Case)"], "has the form"),
        ("PASS_TO_PASS", ["../x/test_a.py::test_b"], "has the form"),
        ("PASS_TO_PASS", ["checks/test_sums.py::Case::test_one"], "is in FAIL_TO_PASS too"),
        ("test_cmd", "./runtests.py", "only pytest is run"),
        ("test_cmd", 5, "a command is needed"),
        ("test_cmd", ["pytest", 5], "a list of texts"),
        ("FAIL_TO_PASS", "tests/test_a.py::test_b", "JSON list"),
        ("FAIL_TO_PASS", "[" * 100_000, "JSON list"),
        ("FAIL_TO_PASS", [[["x"]]], "has the form"),
        ("PASS_TO_PASS", 5, "a list of test ids"),
        ("problem_statement", "\ud800", "a text is needed"),
        ("patch", ["x"], "a text is needed"),
    ],
)
def test_a_fault_names_file_line_and_field(tmp_path, repositories, row, field, value, what) -> None:
    path = written(tmp_path, row, row | {"instance_id": "second", field: value}, row | {"instance_id": "third"})
    with pytest.raises(TaskError) as caught:
        load_rows(path, repositories)
    assert str(caught.value).startswith(f"{path}:2: {field}: ") and what in str(caught.value)
    rows = load_rows(path, repositories, on_error="skip")
    assert [task.task_id for task in rows.tasks] == ["maths__sums-1", "third"]
    assert [str(error) for error in rows.refused] == [str(caught.value)]


def test_lines_that_are_no_rows(tmp_path: Path, repositories: Path, row: dict) -> None:
    rows = load_rows(written(tmp_path, "{", "[]", row, "", row), repositories, on_error="skip")
    assert len(rows.tasks) == 1
    texts = [str(error) for error in rows.refused]
    assert [text.split("rows.jsonl:")[1][0] for text in texts] == ["1", "2", "5"]
    assert "not JSON" in texts[0] and "must be an object" in texts[1] and "stands in" in texts[2]
    lines = [b"[" * 100_000, b'{"a": "\xff"}', b"9" * 5000, json.dumps(row).encode()]
    (tmp_path / "bytes.jsonl").write_bytes(b"\n".join(lines))
    rows = load_rows(tmp_path / "bytes.jsonl", repositories, on_error="skip")
    texts = [str(error) for error in rows.refused]
    assert len(rows.tasks) == 1 and ["not UTF-8" in text for text in texts] == [False, True, False]
    assert ["bytes.jsonl:1: not JSON" in texts[0], "bytes.jsonl:2" in texts[1], "jsonl:3" in texts[2]] == [True] * 3
    (tmp_path / "x.parquet").write_bytes(b"no")
    for name, what in {"x.parquet": "not Parquet", "x.csv": ".jsonl or .parquet", "no.jsonl": "can't be read"}.items():
        with pytest.raises(TaskError, match=what):
            load_rows(tmp_path / name, repositories)


async def test_an_episode_over_a_row(tmp_path: Path, repositories: Path, row: dict) -> None:
    command = "python -m pytest -rA --strict-markers"
    (task,) = load_rows(written(tmp_path, row | {"test_cmd": command}), repositories).tasks
    assert task.payload["test_arguments"] == ["-rA", "--strict-markers"]
    environment = SweEnvironment(repositories=repositories)
    outcome, seen = await play(task, ["git log --all --format=%s; cat README", MEND, "submit"], environment)
    assert outcome.score == 1.0
    assert seen[0].facts["base_commit"] == row["base_commit"]
    assert seen[1].text == "second\nnew\nexit code: 0"  # nothing after the base, and not the commit before it


async def test_tests_may_not_be_changed_by_the_policy(tmp_path: Path, repositories: Path, row: dict) -> None:
    (task,) = load_rows(written(tmp_path, row), repositories).tasks
    cheat = "printf 'def test_add():\\n    pass\\n' > checks/test_sums.py"
    outcome, _ = await play(task, [cheat, "submit"], SweEnvironment(repositories=repositories))
    assert outcome.score == -1.0


@pytest.mark.parametrize(
    "changed, what",
    [
        ({"FAIL_TO_PASS": ["checks/test_sums.py::test_zero"], "PASS_TO_PASS": []}, "FAIL_TO_PASS: 1 of 1 pass already"),
        ({"PASS_TO_PASS": ["checks/test_sums.py::test_no_such"]}, "PASS_TO_PASS: 1 of 1 fail on the base"),
        ({"test_patch": "--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n"}, "test_patch: it does not apply"),
        ({"patch": PATCH.replace("+    return a + b", "+    return 5")}, "patch: it does not solve the task"),
    ],
)
async def test_a_row_that_can_not_be_judged_is_no_score(tmp_path, repositories, row, changed, what) -> None:
    (task,) = load_rows(written(tmp_path, row | changed), repositories).tasks
    with pytest.raises(TaskError) as caught:
        await SweEnvironment(repositories=repositories).reset(task)
    assert what in str(caught.value) and "rows.jsonl:1" in str(caught.value)


async def test_a_row_without_its_repository(tmp_path: Path, repositories: Path, row: dict) -> None:
    (task,) = load_rows(written(tmp_path, row), repositories).tasks
    with pytest.raises(TaskError, match="no folder was given"):
        await SweEnvironment().reset(task)
    with pytest.raises(EnvironmentFailed, match="has no repository"):
        await SweEnvironment(repositories=tmp_path).reset(task)
    with pytest.raises(EnvironmentFailed, match="has no commit"):
        at_commit(repositories / "maths__sums", "1" * 40)


async def test_a_row_is_verified_once_in_a_process(tmp_path: Path, repositories: Path, row: dict) -> None:
    (task,) = load_rows(written(tmp_path, row | {"problem_statement": "again"}), repositories).tasks
    started = []

    async def start(*arguments, **named):
        started.append(1)
        return await Sandbox.start(*arguments, **named)

    evaluation.VERIFIED.clear()
    for _ in range(2):
        environment = SweEnvironment(start, repositories)
        await environment.reset(task)
        await environment.close()
    assert len(started) == 4  # the base, the known patch, and two episodes


def test_files_of_a_patch() -> None:
    assert patch_paths(TEST_PATCH) == ("checks/test_sums.py",)
    renamed = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
    assert patch_paths(renamed + "--- /dev/null\n+++ b/new.py\n") == ("new.py", "x", "y")
