"""Final answers: found in a text, and compared with the label of the task.

What it does: `final_answer` (the text after "Answer:", or in \\boxed{...}), `json_equal`, and `check_answer` for the
kinds math, exact and json. What it leaves out: which calls were made (`outcome.py`), and how mathematics is compared
(`numbers.py`, `math_peer.py`).
"""

import asyncio
import json
import re
from fractions import Fraction
from typing import Any

from serve.environments.protocol import Check
from serve.environments.tool_call import math_peer
from serve.environments.tool_call.numbers import read_number, same_number, tidy
from serve.environments.tool_call.spec import ToolTask

_LINE = re.compile(r"^[ \t>#*_]*(?:final[ \t]+)?answer[*_]*[ \t]*:[*_]*[ \t]*", re.IGNORECASE | re.MULTILINE)
_FENCED = re.compile(r"\A(?P<fence>`{3,})[A-Za-z]*[ \t]*\n(?P<inside>.*)\n(?P=fence)\s*\Z", re.DOTALL)
BOXED_CHARS = 20_000  # of a text's end, in which a \\boxed{...} is looked for
_BRACE = re.compile(r"\\boxed\s*\{|[{}]")
_VERDICTS = {
    "unreadable": "can't be read as mathematics",
    "too long": "takes too long to work out",
    "undone": "leaves work undone: the value is asked for: 5, not 2 + 3; -1 <= x <= 7, not |x - 3| <= 4",
}


def final_answer(text: str) -> tuple[str | None, str | None]:
    """The final answer of a text, or what is wrong with it: (answer, fault); both None where there is none."""
    marks = list(_LINE.finditer(text))
    if marks:
        given = [text[one.end() : two].strip() for one, two in _spans(marks, len(text))]
        if any(one != given[0] for one in given):
            return None, f"{len(given)} final answers that differ were given: give one"
        answer = given[0]
    else:
        boxes = _boxes(text)
        if len(set(boxes)) > 1:
            return None, f"{len(boxes)} \\boxed{{...}} that differ were given: box the final answer only"
        if not boxes:
            return None, None
        answer = boxes[0]
    if (fenced := _FENCED.match(answer)) is not None:
        answer = fenced["inside"].strip()
    return (answer, None) if answer else (None, "the final answer is empty: write it after 'Answer:'")


def first_answer_line(text: str) -> int | None:
    """Where the first "Answer:" line begins, or None."""
    found = _LINE.search(text)
    return found.start() if found else None


def _spans(marks: list[re.Match[str]], end: int) -> list[tuple[re.Match[str], int]]:
    return list(zip(marks, [mark.start() for mark in marks[1:]] + [end], strict=True))


def _boxes(text: str) -> list[str]:
    """What stands in each outermost \\boxed{...}, braces balanced; of a long text, in its end."""
    text = text[-BOXED_CHARS:]
    spans: list[tuple[int, int]] = []
    open_braces: list[int | None] = []
    for found in _BRACE.finditer(text):
        if found[0] != "}":
            open_braces.append(found.end() if found[0] != "{" else None)
        elif open_braces and (start := open_braces.pop()) is not None:
            while spans and spans[-1][0] > start:
                spans.pop()  # it stands in this one
            spans.append((start, found.start()))
    return [text[start:end].strip() for start, end in spans]


def json_equal(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Equal as JSON values: 1 is 1.0, true is not 1; numbers may differ by the tolerance."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or (tolerance > 0 and _near(one, other, tolerance))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(json_equal(a, b, tolerance) for a, b in pairs)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key], tolerance) for key in one)
    return type(one) is type(other) and one == other


def _near(one: float, other: float, tolerance: float) -> bool:
    try:
        return abs(one - other) <= tolerance
    except OverflowError:  # a whole number that no float can hold
        return False


def read_json(text: str) -> Any:
    """A JSON value, strictly: no NaN, no repeated key.

    Raises:
        ValueError: says where it is none.
    """

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(given)) != len(given):
            raise ValueError("a key stands twice in one object")
        return dict(given)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON value")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def unfit(task: ToolTask, answer: Any) -> str | None:
    """Why an answer has not the form of this kind of task, so that the policy may give it again; None if it has."""
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return "the final answer is empty"
    if task.kind == "json" and isinstance(answer, str):
        try:
            read_json(answer)
        except ValueError as error:
            return f'the final answer is not JSON: {error}. Strings need double quotes: "abc"'
    if task.kind == "math" and not isinstance(answer, str | int | float):
        return f"the final answer is {type(answer).__name__}: one value is asked for, as text"
    if task.kind == "math" and "\n" in str(answer).strip():
        return "the final answer has several lines: write the value alone"
    return None


async def check_answer(task: ToolTask, answer: Any) -> Check:
    """The check of a given answer.

    Raises:
        EnvironmentFailed: it could not be compared.
    """
    if task.kind == "json":
        passed = json_equal(task.label, read_json(answer) if isinstance(answer, str) else answer, task.tolerance or 0.0)
        return _check(passed, f"got {_short(answer)}")
    said = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    if task.kind == "exact":
        return _check(_folded(task, said) == _folded(task, task.label), f"got {_short(said)}")
    return await _check_math(task, said)


async def _check_math(task: ToolTask, said: str) -> Check:
    if (wanted := read_number(task.label)) is not None:
        if (number := read_number(said)) is None:
            return _check(False, f"got {_short(said)}, which is not one plain number")
        tolerance = None if task.tolerance is None else Fraction(str(task.tolerance))
        return _check(same_number(wanted, number, tolerance), f"got {_short(said)}")
    if (why := math_peer.refused(task.label, said)) is not None:
        return _check(False, f"got {_short(said)}: {why}")
    verdict = await asyncio.to_thread(math_peer.compare, task.label, said)
    what = f", which {_VERDICTS[verdict]}" if verdict in _VERDICTS else ""
    return _check(verdict == "same", f"got {_short(said)}{what}")


def _check(passed: bool, detail: str) -> Check:
    return Check(name="answer", passed=passed, detail=detail)


def _folded(task: ToolTask, text: str) -> str:
    text = text.strip()
    label = task.label.strip()
    if text != label and len(text) <= 2 * len(label) + 1000:
        text = tidy(text)
        if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and label[:1] != text[0]:
            text = text[1:-1]
        if text.endswith(".") and not label.endswith("."):
            text = text[:-1]
    if "space" in task.fold:
        text = " ".join(text.split())
    return text.casefold() if "case" in task.fold else text


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text if len(text) <= 120 else text[:117] + "...")
