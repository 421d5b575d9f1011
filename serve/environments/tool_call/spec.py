"""What a task of this track holds, read from its payload and checked: `ToolTask`.

What it does: `read_payload` (for the task files and rows: checks each field and says which is wrong), `ToolTask.of`
(the same for a task that came as JSON). What it leaves out: declared functions themselves (`functions.py`).

Fields of a task besides those of `tasks.py`:

    kind = "math"              # how the answer is compared: math, exact, json; or call: only what was called counts
    label = "42"               # the right answer; never shown, never in a sandbox
    tolerance = 0.01           # math, json: how far numbers may be off
    fold = ["case", "space"]   # exact: what does not matter; [] compares as written
    python = true              # whether the policy may run Python
    packages = ["sympy"]       # Python packages of ours that the policy's Python may import
    keep_state = true          # whether names live on from one Python call to the next
    service = "calendar"       # functions and state of services/calendar.toml
    state = "rooms = {}"       # Python that sets up what the functions work on, after the service's own
    functions = [{name, description, parameters, code}]
    calls = [{name, arguments}]    # calls that must have been made, with equal arguments; each is a check
    only_calls = ["book"]          # of these functions no other call may have succeeded than those in `calls`
    state_check = "len(rooms) == 1"   # Python over what the functions left (or a list of them); each is a check
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from serve.environments.sandbox import PACKAGE_NAME
from serve.environments.tasks import Limits, Task, TaskError
from serve.environments.tool_call.functions import MAX_DEPTH, Function, compiled, read_functions, too_deep, with_service
from serve.environments.tool_call.numbers import read_number

LIMITS = Limits(  # of the track
    steps=10, step_s=10.0, episode_s=120.0, memory_mb=512, processes=32, disk_mb=32, output_chars=4000
)
Kind = Literal["math", "exact", "json", "call"]
KINDS: tuple[Kind, ...] = ("math", "exact", "json", "call")
FIELDS = {
    "kind", "label", "tolerance", "fold", "python", "packages", "keep_state", "service", "state", "functions", "calls",
    "only_calls", "state_check",
}  # fmt: skip
SHOWN_CHARS = 500  # of one fault
Fail = Callable[[str, str], TaskError]  # (field, what is wrong) -> the error that names its place


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTask:
    """A task's payload, checked."""

    kind: Kind
    label: Any  # text for math and exact, any JSON value for json, None for call
    tolerance: float | None
    fold: tuple[str, ...]
    python: bool
    packages: tuple[str, ...]
    keep_state: bool
    state: str
    functions: tuple[Function, ...]
    calls: tuple[dict[str, Any], ...]
    only_calls: tuple[str, ...]
    state_check: tuple[str, ...]

    @classmethod
    def of(cls, task: Task) -> "ToolTask":
        """Read from a task.

        Raises:
            TaskError: a field is wrong.
        """

        def fail(name: str, what: str) -> TaskError:
            return TaskError(f"{task.source or task.task_id}: {name}: {what}")

        if not isinstance(task.instruction, str) or not task.instruction.strip():
            raise fail("instruction", f"{task.instruction!r:.100}: a text is needed")
        _require_json(task.payload, fail)
        return _read(task.payload, fail)


def read_payload(given: dict[str, Any], fail: Fail) -> dict[str, Any]:
    """The payload of a task, checked; a service is put in by its functions and state, so that it stands alone.

    Raises:
        TaskError: made by `fail`.
    """
    _require_json(given, fail)
    payload = with_service(given, fail)
    _read(payload, fail)
    return payload


def _require_json(given: Any, fail: Fail) -> None:
    """Each field must be plain JSON, not nested deeply: as such it crosses to other processes."""
    if not isinstance(given, dict):
        raise fail("payload", f"{given!r:.100}: an object with kind, label and so on is needed")
    for name, value in given.items():
        if too_deep(value):
            raise fail(str(name)[:80], f"nested too deeply: {MAX_DEPTH} levels are the most")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:  # a date of TOML, bytes of Parquet, NaN
            raise fail(str(name)[:80], f"no JSON: {str(error)[:100]}") from error


def _read(given: dict[str, Any], say: Fail) -> ToolTask:
    def fail(name: str, what: str) -> TaskError:
        return say(name[:200], what if len(what) <= SHOWN_CHARS else f"{what[:SHOWN_CHARS]}...")

    if unknown := sorted(set(given) - FIELDS):
        raise fail(unknown[0], f"unknown; known are {', '.join(sorted(FIELDS))}")
    kind = given.get("kind")
    if kind not in KINDS:
        raise fail("kind", f"{kind!r}: one of {', '.join(KINDS)} is needed")
    functions = read_functions(given.get("functions", []), fail)
    names = [function.name for function in functions]
    task = ToolTask(
        kind=kind, label=_label(kind, given, fail), tolerance=_tolerance(given, fail), fold=_fold(given, fail),
        python=_flag(given, "python", fail), packages=_packages(given, fail),
        keep_state=_flag(given, "keep_state", fail), state=_state(given, fail), functions=functions,
        calls=_calls(given, names, fail), only_calls=_only_calls(given, names, fail),
        state_check=_state_check(given, fail),
    )  # fmt: skip
    if kind == "call" and not task.calls and not task.state_check:
        raise fail("kind", "a task of kind call needs calls or state_check")
    if not functions and (task.state or task.state_check):
        raise fail("state_check" if task.state_check else "state", "there are no functions that it could belong to")
    if not functions and not task.python and kind == "call":
        raise fail("functions", "nothing can be called: python is false and no function is declared")
    return task


def _label(kind: Kind, given: dict[str, Any], fail: Fail) -> Any:
    label = given.get("label")
    if kind == "call":
        if label is not None:
            raise fail("label", "a task of kind call has none: its calls and its state are what is checked")
        return None
    if label is None or label == "":
        raise fail("label", "missing: the right answer is needed")
    if kind == "json":
        return _json_label(label, fail)
    if isinstance(label, bool) or not isinstance(label, str | int | float) or not str(label).strip():
        raise fail("label", f"{label!r}: a text or a number is needed")
    if isinstance(label, float) and not math.isfinite(label):
        raise fail("label", f"{label!r}: a finite number is needed")
    return str(label).strip() if kind == "math" else str(label)


def _json_label(label: Any, fail: Fail) -> Any:
    if not isinstance(label, str):
        return label
    try:
        value = json.loads(label)
    except ValueError as error:
        raise fail("label", f"{label[:80]!r} is not JSON: {error}") from error
    except RecursionError as error:
        raise fail("label", f"{label[:80]!r} is nested too deeply") from error
    if too_deep(value):
        raise fail("label", f"{label[:80]!r} is nested too deeply: {MAX_DEPTH} levels are the most")
    return value


def _tolerance(given: dict[str, Any], fail: Fail) -> float | None:
    value = given.get("tolerance")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9):
        raise fail("tolerance", f"{value!r}: a number from 0 up is needed")
    if value is not None and given["kind"] not in ("math", "json"):
        raise fail("tolerance", f"has no meaning for kind {given['kind']}")
    if value is not None and given["kind"] == "math" and read_number(str(given.get("label"))) is None:
        raise fail("tolerance", f"is for plain numbers; the label is {given.get('label')!r}")
    return value


def _fold(given: dict[str, Any], fail: Fail) -> tuple[str, ...]:
    value = given.get("fold", ["case", "space"])
    if not isinstance(value, list) or not set(map(str, value)) <= {"case", "space"}:
        raise fail("fold", f"{value!r}: a list with case, space, both or none is needed")
    return tuple(value)


def _packages(given: dict[str, Any], fail: Fail) -> tuple[str, ...]:
    value = given.get("packages", [])
    if not isinstance(value, list):
        raise fail("packages", f"{value!r}: a list of names of Python packages is needed")
    if strange := [one for one in value if not isinstance(one, str) or not PACKAGE_NAME.fullmatch(one)]:
        raise fail("packages", f"{strange[0]!r:.100}: a name like sympy is needed: letters, digits, '_', '.', '-'")
    return tuple(value)


def _flag(given: dict[str, Any], name: str, fail: Fail) -> bool:
    value = given.get(name, True)
    if not isinstance(value, bool):
        raise fail(name, f"{value!r}: true or false is needed")
    return value


def _state(given: dict[str, Any], fail: Fail) -> str:
    value = given.get("state", "")
    if not isinstance(value, str):
        raise fail("state", f"{value!r}: Python source is needed")
    compiled(value, "exec", "state", fail)
    return value


def _calls(given: dict[str, Any], names: list[str], fail: Fail) -> tuple[dict[str, Any], ...]:
    calls = given.get("calls", [])
    if not isinstance(calls, list):
        raise fail("calls", f"{calls!r}: a list of {{name, arguments}} is needed")
    for call in calls:
        if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["arguments"], dict):
            raise fail("calls", f"{call!r}: {{name = ..., arguments = {{...}}}} is needed")
        if call["name"] not in names:
            raise fail("calls", f"{call['name']!r} is no declared function; declared are {', '.join(names) or 'none'}")
    return tuple(calls)


def _only_calls(given: dict[str, Any], names: list[str], fail: Fail) -> tuple[str, ...]:
    value = given.get("only_calls", [])
    if not isinstance(value, list) or not set(map(str, value)) <= set(names):
        raise fail("only_calls", f"{value!r}: a list of declared functions is needed: {', '.join(names) or 'none'}")
    return tuple(value)


def _state_check(given: dict[str, Any], fail: Fail) -> tuple[str, ...]:
    value = given.get("state_check", [])
    expressions = [value] if isinstance(value, str) else value
    if not isinstance(expressions, list) or not all(isinstance(one, str) and one.strip() for one in expressions):
        raise fail("state_check", f"{value!r}: a Python expression or a list of them is needed")
    for one in expressions:
        compiled(one, "eval", "state_check", fail)
    return tuple(one.strip() for one in expressions)
