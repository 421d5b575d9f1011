"""Tasks from rows: JSONL and Parquet with the columns `prompt` and `label`, as data sets of questions have them.

What it does: `load_rows`. Optional columns are `id`, `skill`, `split`, `difficulty`, `limits` and the track's own
fields (`spec.py`; `kind` is math where it is not given). Nested fields may be JSON texts. Every fault names file, line
(or row) and field; `on_error="skip"` gives the faults beside the tasks that are whole.
What it leaves out: prompts that are lists of messages, and columns of other names, unless `rename` or `ignore` says so.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serve.environments.tasks import Limits, Task, TaskError
from serve.environments.tool_call.functions import MAX_DEPTH, too_deep
from serve.environments.tool_call.labels import unreadable
from serve.environments.tool_call.spec import FIELDS, LIMITS, read_payload

COMMON = {"prompt", "id", "skill", "split", "difficulty", "limits"}
NESTED = ("functions", "calls", "limits", "fold", "only_calls", "packages")  # may come as JSON texts
MAX_LINE = 10_000_000  # characters of one line


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file held."""

    tasks: tuple[Task, ...]
    errors: tuple[TaskError, ...]  # of the rows that were left out


@dataclass(frozen=True, slots=True)
class _Row:
    place: str  # "questions.jsonl:12" or "questions.parquet: row 12"
    number: int  # from 1
    values: dict[str, Any] | TaskError  # a line that can't be read is its error

    def fail(self, name: str, what: str) -> TaskError:
        return TaskError(f"{self.place}: {name}: {what}")


def load_rows(
    path: Path, *, limits: Limits = LIMITS, on_error: Literal["raise", "skip"] = "raise",
    rename: Mapping[str, str] | None = None, ignore: Iterable[str] = (), check_labels: bool = True,
) -> Rows:  # fmt: skip
    """The tasks of a JSONL or Parquet file.

    `rename` says which column is which field ({"question": "prompt"}), `ignore` which columns are of no use here.
    `check_labels` looks whether labels that are no plain number can be read as mathematics (some milliseconds each).

    Raises:
        TaskError: the first fault; with on_error="skip" only a file that can't be read at all.
        EnvironmentFailed: labels could not be checked.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is {on_error!r}: raise or skip is needed")
    tasks: dict[str, Task] = {}
    errors: list[TaskError] = []
    for row in _read(path):
        try:
            task = _task(row, path, limits, rename or {}, set(ignore), check_labels)
            if task.task_id in tasks:
                raise row.fail("id", f"{task.task_id!r} stands in {tasks[task.task_id].source} already")
            tasks[task.task_id] = task
        except TaskError as error:
            if on_error == "raise":
                raise
            errors.append(error)
    if not tasks and not errors:
        raise TaskError(f"{path}: there is no row in it")
    return Rows(tuple(tasks.values()), tuple(errors))


def _read(path: Path) -> Iterator[_Row]:
    if path.suffix == ".jsonl":
        return _jsonl(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    raise TaskError(f"{path}: a file that ends in .jsonl or .parquet is needed")


def _jsonl(path: Path) -> Iterator[_Row]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _Row(f"{path.name}:{number}", number, _line(line, f"{path.name}:{number}"))
    except OSError as error:
        raise TaskError(f"{path}: can't be read: {error.strerror}") from error


def _line(line: bytes, place: str) -> dict[str, Any] | TaskError:
    if len(line) > MAX_LINE:
        return TaskError(f"{place}: the line has {len(line)} bytes; {MAX_LINE} are the most")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return TaskError(f"{place}: not JSON: {error}")
    if not isinstance(value, dict):
        return TaskError(f"{place}: {type(value).__name__}: a JSON object is needed in each line")
    return value


def _parquet(path: Path) -> Iterator[_Row]:
    import polars

    try:
        frame = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise TaskError(f"{path}: can't be read as Parquet: {error}") from error
    for number, values in enumerate(frame.iter_rows(named=True), 1):
        yield _Row(f"{path.name}: row {number}", number, values)


def _whole(value: Any) -> Any:
    """Without the nulls that a table puts where a nested field has nothing."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items() if one is not None}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _task(
    row: _Row, path: Path, limits: Limits, rename: Mapping[str, str], ignore: set[str], check_labels: bool
) -> Task:
    if isinstance(row.values, TaskError):
        raise row.values
    given = {rename.get(key, key): value for key, value in row.values.items() if key not in ignore}
    if deep := [key for key, value in given.items() if too_deep(value)]:
        raise row.fail(str(deep[0])[:80], f"nested too deeply: {MAX_DEPTH} levels are the most")
    label = given.get("label")
    given = {key: _nested(row, key, value) for key, value in given.items() if value is not None}
    if "label" in given:
        given["label"] = label  # nulls within a JSON label are values
    if unknown := sorted(set(given) - COMMON - FIELDS):
        raise row.fail(unknown[0], "unknown column; name it in `rename` or `ignore`")
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise row.fail("prompt", f"{prompt!r:.80}: a text is needed")
    own = {key: value for key, value in given.items() if key in FIELDS}
    payload = read_payload({"kind": "math"} | own, row.fail)
    if check_labels and payload["kind"] == "math" and unreadable(str(payload["label"]).strip()):
        raise row.fail("label", f"{payload['label']!r:.80} can't be read as mathematics; kind exact compares texts")
    return Task(
        task_id=_name(row, given, "id", f"{_safe(path.stem)}-{row.number}"), track="tool_call",
        skill=_name(row, given, "skill", _safe(path.stem)), split=_split(row, given),
        difficulty=_difficulty(row, given), instruction=prompt.strip(), limits=_limits(row, given, limits),
        payload=payload, source=row.place,
    )  # fmt: skip


def _nested(row: _Row, name: str, value: Any) -> Any:
    if name not in NESTED or not isinstance(value, str):
        return _whole(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise row.fail(name, f"not JSON: {error}") from error
    except RecursionError as error:
        raise row.fail(name, "nested too deeply") from error


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:60] or "rows"


def _name(row: _Row, given: dict[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", value):
        raise row.fail(name, f"{value!r:.100}: up to 80 letters, digits, '_', '.', '-' are needed")
    return value


def _split(row: _Row, given: dict[str, Any]) -> Literal["train", "held_out"]:
    value = given.get("split", "train")
    if value not in ("train", "held_out"):
        raise row.fail("split", f"{value!r}: train or held_out is needed")
    return value


def _difficulty(row: _Row, given: dict[str, Any]) -> int:
    value = given.get("difficulty", 3)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 5:
        raise row.fail("difficulty", f"{value!r}: a whole number from 1 (easy) to 5 is needed")
    return value


def _limits(row: _Row, given: dict[str, Any], limits: Limits) -> Limits:
    try:
        return limits.replace(given.get("limits", {}))
    except (TaskError, TypeError, AttributeError, ValueError) as error:
        raise row.fail("limits", str(error)) from error
