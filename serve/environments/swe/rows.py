"""Tasks from rows in the form of SWE-bench, over git repositories on this machine.

What it does: `load_rows` reads JSON lines or Parquet; a row with a fault is refused with its file, line and field, and
with `on_error="skip"` the others go on. Repositories lie in one folder, as `owner__name` or `owner/name`.
What it leaves out: fetching repositories, installing what they need (tests see Python's standard library and pytest),
and tests that pytest can't run: ids have pytest's form, `path/test_a.py::test_b`. Whether tests fail and pass as a row
says is found out before its first episode (`evaluation.verify`).
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serve.environments.swe.payload import read_payload
from serve.environments.swe.repository import has_commit
from serve.environments.tasks import Limits, Split, Task, TaskError, check_all
from serve.environments.terminal.payload import brief, is_text

ROW_LIMITS = Limits(
    steps=40, step_s=120.0, episode_s=1800.0, memory_mb=2048, processes=128, disk_mb=512, output_chars=8000
)
ROW_TEST_S = 600.0
TEXTS = ("instance_id", "repo", "base_commit", "problem_statement")


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file held."""

    tasks: tuple[Task, ...]
    refused: tuple[TaskError, ...]


def load_rows(
    path: Path, repositories: Path, *, on_error: Literal["raise", "skip"] = "raise", split: Split = "train",
    limits: Limits = ROW_LIMITS,
) -> Rows:  # fmt: skip
    """The tasks of a file.

    Raises:
        TaskError: the file can't be read, or a row has a fault and `on_error` is "raise".
    """
    tasks: dict[str, Task] = {}
    refused: list[TaskError] = []
    for place, row in _rows(path):
        try:
            if isinstance(row, TaskError):
                raise row
            task = _task(row, place, repositories, split, limits)
            if task.task_id in tasks:
                raise TaskError(
                    f"{place}: instance_id: {task.task_id!r} stands in {tasks[task.task_id].source} already"
                )
            tasks[task.task_id] = task
        except TaskError as error:
            if on_error == "raise":
                raise
            refused.append(error)
    return Rows(check_all(tasks.values()), tuple(refused))


def find_repository(root: Path, name: str) -> Path | None:
    """The folder of a repository `owner/name`."""
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return None
    places = (root / name.replace("/", "__"), root / name)
    return next((place for place in places if place.is_dir()), None)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) of each row; a line that is no row is its error."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{path}: not Parquet: {error}") from error
        for number, row in enumerate(table.to_pylist(), 1):
            yield f"{path}: row {number}", row
        return
    if path.suffix not in (".jsonl", ".json"):
        raise TaskError(f"{path}: rows are read from .jsonl or .parquet")
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TaskError(f"{path}: can't be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{path}:{number}"
            try:
                yield place, json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                yield place, TaskError(f"{place}: not UTF-8: {error}")
            except (ValueError, RecursionError) as error:
                yield place, TaskError(f"{place}: not JSON: {error}")


def _task(row: Any, place: str, repositories: Path, split: Split, limits: Limits) -> Task:
    def error(field: str, what: str) -> TaskError:
        return TaskError(f"{place}: {field}: {what}")

    if not isinstance(row, dict):
        raise TaskError(f"{place}: a row must be an object, this is {type(row).__name__}")
    for name in TEXTS:
        if not is_text(row.get(name)) or not row[name].strip():
            raise error(name, f"{brief(row.get(name))}: a text is needed")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", row["instance_id"]):
        raise error("instance_id", f"{brief(row['instance_id'])}: up to 80 letters, digits, '_', '.', '-' are needed")
    value = {
        "repository": row["repo"], "base_commit": row["base_commit"].strip(), "test_patch": row.get("test_patch") or "",
        "patch": row.get("patch") or "", "test_s": ROW_TEST_S,
        "test_arguments": _test_arguments(row.get("test_cmd"), error),
        **{name: _list(row, name, error) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")},
    }  # fmt: skip
    of_row = {"repository": "repo", "test_arguments": "test_cmd"}
    read_payload(value, lambda name, what: error(of_row.get(name, name), what))
    folder = find_repository(repositories, row["repo"])
    if folder is None:
        raise error("repo", f"{brief(row['repo'])}: neither owner__name nor owner/name lies in {repositories}")
    if not has_commit(folder, value["base_commit"]):
        raise error("base_commit", f"{folder} has no commit {value['base_commit']}: fetch it there")
    return Task(
        task_id=row["instance_id"], track="swe", skill=row["repo"], split=split, difficulty=3,
        instruction=row["problem_statement"].strip(), limits=limits, payload=value, source=place,
    )  # fmt: skip


def _list(row: dict[str, Any], name: str, error: Any) -> list[str]:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as fault:
            raise error(name, f"neither a list nor a JSON list: {fault}") from fault
    if not isinstance(value, list):
        raise error(name, f"{brief(value)}: a list of test ids, or such a list as JSON, is needed")
    return value


def _test_arguments(command: Any, error: Any) -> list[str]:
    """What a `test_cmd` gives pytest besides the files."""
    if command is None or command == "":
        return []
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except (ValueError, TypeError) as fault:
        raise error("test_cmd", f"{brief(command)}: a command is needed: {fault}") from fault
    for start in (["pytest"], ["python", "-m", "pytest"], ["python3", "-m", "pytest"]):
        if words[: len(start)] == start:
            return words[len(start) :]
    raise error("test_cmd", f"{brief(command)}: only pytest is run: 'pytest' or 'python -m pytest' and its options")
