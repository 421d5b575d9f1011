"""The plain text form of actions, for models that can't call tools.

What it does: `parse_plain` (never raises: what it can't read becomes a fault that names line and right form) and its
reverse `plain_text`; `expert_action`, which turns an entry of a task's expert or wrong solution into an action.
What it leaves out: running anything.

The form: ```python fences hold code, ```json fences a call, "Answer: ..." (or \\boxed{...}) the final answer.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import TaskError
from serve.environments.tool_call.answers import final_answer, first_answer_line, read_json

PYTHON_FORM = "```python\nprint(1 + 1)\n```"
JSON_FORM = '```json\n{"name": "look_up", "arguments": {"city": "Oslo"}}\n```'
ANSWER_FORM = "Answer: 5"
_OPEN = re.compile(r"^ {0,3}(?P<fence>`{3,})[ \t]*+(?P<language>[^\s`]*+)[^`\n]*+$")
_LANGUAGES = {"python": "python", "py": "python", "python3": "python", "json": "json", "tool_call": "json"}


class _Unreadable(Exception):
    """Why a text is no action; becomes the action's fault."""


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    content: str
    line: int  # of its opening fence, from 1


def parse_plain(text: str) -> Action:
    """The action that a text asks for."""
    try:
        return Action(text=text, calls=tuple(_read(text)))
    except _Unreadable as why:
        return Action(text=text, fault=str(why))


def _read(text: str) -> list[Call]:
    blocks = list(_blocks(text))
    outside = _outside(text, blocks)
    languages = {block.language for block in blocks}
    if len(languages) > 1:
        raise _Unreadable(
            f"line {blocks[0].line} opens a {blocks[0].language} block and another one is of another kind: "
            "put either code or calls into one message."
        )
    if blocks and first_answer_line(outside) is not None:
        raise _Unreadable(
            "this message has both a call and a final answer: nothing was run. See the call's result first, then "
            f"end a message of its own with\n{ANSWER_FORM}"
        )
    if blocks:
        return [_call(block) for block in blocks]
    answer, fault = final_answer(text)
    if fault is not None:
        raise _Unreadable(f"{fault}. The right form, as the last line:\n{ANSWER_FORM}")
    if answer is None:
        raise _Unreadable(
            "this message has neither a call nor a final answer. Write one of these:\n"
            f"{PYTHON_FORM}\n{JSON_FORM}\n{ANSWER_FORM}"
        )
    return [Call(name="answer", arguments={"value": answer})]


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced blocks, one after the other; one that is the whole value of an "Answer:" line is none."""
    lines = text.split("\n")
    last = max((number for number, line in enumerate(lines) if line.strip()), default=0)
    number = 0
    while number < len(lines):
        opened = _OPEN.match(lines[number])
        number += 1
        if opened is None:
            continue
        first, fence = number, opened["fence"]
        while number < len(lines) and not _closes(lines[number], fence):
            number += 1
        if number == len(lines):
            raise _Unreadable(
                f"line {first} opens a block that is never closed: end it with a line {fence}\n{PYTHON_FORM}"
            )
        number += 1
        if number > last and _asks_for_an_answer(lines, first - 1):
            continue
        yield _Block(_language(opened["language"], first), "\n".join(lines[first : number - 1]), first)


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {"`"}


def _asks_for_an_answer(lines: list[str], end: int) -> bool:
    """Whether the last line before this one that is not empty is an empty "Answer:"."""
    said = next((lines[number] for number in range(end - 1, -1, -1) if lines[number].strip()), "")
    return re.fullmatch(r"(?i)(?:final )?answer\s*:", said.strip(" *_#>\t")) is not None


def _language(given: str, line: int) -> str:
    if (language := _LANGUAGES.get(given.lower())) is None:
        what = f"of kind {given!r}" if given else "without a kind"
        raise _Unreadable(
            f"line {line} opens a block {what}: python (code) or json (a call) is needed.\n{PYTHON_FORM}\n{JSON_FORM}"
        )
    return language


def _outside(text: str, blocks: list[_Block]) -> str:
    lines = text.split("\n")
    for block in blocks:
        for number in range(block.line - 1, block.line + block.content.count("\n") + 2):
            if number < len(lines):
                lines[number] = ""
    return "\n".join(lines)


def _call(block: _Block) -> Call:
    if not block.content.strip():
        form = PYTHON_FORM if block.language == "python" else JSON_FORM
        raise _Unreadable(f"the block at line {block.line} is empty. The right form:\n{form}")
    if block.language == "python":
        return Call(name="python", arguments={"code": block.content})
    what = f"the block at line {block.line}"
    form = f"The right form:\n{JSON_FORM}"
    try:
        value = read_json(block.content)
    except ValueError as error:
        raise _Unreadable(f"{what} is not JSON: {error}. {form}") from None
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise _Unreadable(f"{what} must be an object with name and arguments only. {form}")
    if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
        raise _Unreadable(f"{what}: name is a text, arguments an object. {form}")
    return Call(name=value["name"], arguments=value["arguments"])


def plain_text(action: Action) -> str:
    """An action as a text that `parse_plain` reads as the same calls. A faulty one is its own text.

    Python calls that are not just code are written as JSON; mixed kinds come out mixed, which the reading refuses.
    """
    parts = [action.text.strip()] if action.text.strip() and action.calls else []
    if not action.calls:
        return action.text
    return "\n\n".join([*parts, *(_written(call) for call in action.calls)])


def _written(call: Call) -> str:
    if call.name == "answer" and set(call.arguments) == {"value"}:
        value = call.arguments["value"]
        return f"Answer: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
    if call.name == "python" and set(call.arguments) == {"code"} and isinstance(call.arguments["code"], str):
        return _fenced("python", call.arguments["code"])
    value = {"name": call.name, "arguments": call.arguments}
    return _fenced("json", json.dumps(value, ensure_ascii=False))


def _fenced(language: str, content: str) -> str:
    longest = max((len(found) for found in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{content}\n{fence}"


def expert_action(entry: Any, observation: Observation) -> Action:
    """An entry of a task's expert or wrong solution as an action.

    An entry is {python = "code"}, {call = "name", arguments = {...}}, {answer = value}, or a list of those for several
    calls in one message.

    Raises:
        TaskError: the entry is none of these.
    """
    entries = entry if isinstance(entry, list | tuple) else [entry]
    return Action(text="", calls=tuple(_entry(one) for one in entries))


def _entry(one: Any) -> Call:
    if isinstance(one, dict):
        if set(one) == {"python"} and isinstance(one["python"], str):
            return Call(name="python", arguments={"code": one["python"]})
        if set(one) == {"answer"}:
            return Call(name="answer", arguments={"value": one["answer"]})
        if isinstance(one.get("call"), str) and set(one) <= {"call", "arguments"}:
            arguments = one.get("arguments", {})
            if isinstance(arguments, dict):
                return Call(name=one["call"], arguments=arguments)
    raise TaskError(
        f"expert or wrong: {one!r:.99}: {{python = ...}}, {{call = ..., arguments = ...}} or {{answer = ...}} is needed"
    )
