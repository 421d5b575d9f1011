"""Actions as plain text, for models that don't call functions: one action on the last line of an answer.

What it does: `parse_plain` reads an answer; `plain_text` writes an action so that `parse_plain` reads it again.
What it leaves out: whether the action can be done (`actions.py`).
"""

import difflib
import json
import re
from typing import Any

from serve.environments.gui.actions import ACTIONS
from serve.environments.protocol import Action, Call

FORMS = {
    "click": "click e12",
    "double_click": "double_click e12",
    "type": 'type e4 "text"',
    "key": "key Enter",
    "scroll": "scroll down",
    "select": 'select e7 "Blue"',
    "drag": "drag e3 e9",
    "hover": "hover e12",
    "back": "back",
    "wait": "wait 1",
    "done": "done",
}
OTHER_WORDS = {
    "fill": "type", "write": "type", "input": "type", "enter": "type", "press": "key", "tap": "click",
    "choose": "select", "pick": "select", "finish": "done", "finished": "done",
}  # fmt: skip
_ID = r"\[?(e?\d+)\]?"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def parse_plain(text: str) -> Action:
    """The action of an answer, or the fault that names what was wrong and shows the right form."""
    lines = [line for line in (_bare(line) for line in text.splitlines()) if line]
    if not lines:
        return Action(text="", fault="the answer is empty: write one action, like: click e12")
    *before, last = lines
    call = _read(last)
    if isinstance(call, str):
        return Action(text=text.strip(), fault=call)
    if any(isinstance(_read(line), Call) for line in before):
        return Action(text=text.strip(), fault="the answer holds several actions: write one, alone on the last line")
    thought = text.strip().rsplit("\n", 1)[0].strip() if before else ""
    return Action(text=thought, calls=(call,))


def plain_text(action: Action) -> str:
    """An action as an answer in the plain format.

    Raises:
        ValueError: it holds no call, or more than one.
    """
    if len(action.calls) != 1:
        raise ValueError(f"the plain format takes one action an answer, not {len(action.calls)}")
    (call,) = action.calls
    given = call.arguments
    if call.name == "type":
        added = "" if given.get("clear", True) else "+ "
        words = [given["element"], added + json.dumps(given["text"], ensure_ascii=False)]
    elif call.name == "select":
        options = [given["option"]] if isinstance(given["option"], str) else given["option"]
        words = [given["element"], *(json.dumps(one, ensure_ascii=False) for one in options)]
    else:
        order = ("key", "direction", "element", "from", "to", "seconds")
        words = [f"{given[name]:g}" if name == "seconds" else given[name] for name in order if name in given]
    line = " ".join([call.name, *words])
    return f"{action.text}\n{line}" if action.text else line


def _bare(line: str) -> str:
    """A line without what models put around it: list marks, backticks, code fences, a label."""
    line = line.strip()
    if line.startswith("```"):
        return ""
    line = re.sub(r"^(?:[-*>]\s+|\d+[.)]\s+)", "", line).strip("`* ")
    return re.sub(r"^(?:action|answer)\s*:\s*", "", line, flags=re.IGNORECASE)


def _read(line: str) -> Call | str:
    """The call that a line is, or what is wrong with it."""
    word, _, rest = line.partition(" ")
    name, rest = word.lower().rstrip(".:"), rest.strip()
    if name not in ACTIONS:
        return f"the last line is no action: {line[:80]!r}. Write one of {', '.join(ACTIONS)}, like: {_nearest(name)}"
    arguments = _arguments(name, rest)
    if arguments is None:
        ids = " (the id that the page shows in brackets)" if re.search(r" e\d", FORMS[name]) else ""
        return f"{line[:80]!r} can't be read. The right form is: {FORMS[name]}{ids}"
    return Call(name=name, arguments=arguments)


def _nearest(word: str) -> str:
    """The form of the action that an unknown word is most like."""
    alike = difflib.get_close_matches(word, [*ACTIONS, *OTHER_WORDS], n=1)
    name = alike[0] if alike else "click"
    return FORMS[OTHER_WORDS.get(name, name)]


def _arguments(name: str, rest: str) -> dict[str, Any] | None:
    if name in ("back", "done"):
        return {} if not rest.strip(".") else None
    if name in ("click", "double_click", "hover"):
        found = re.fullmatch(_ID, rest)
        return {"element": _id(found[1])} if found else None
    if name == "drag":
        found = re.fullmatch(rf"{_ID}\s+(?:to\s+|->\s*)?{_ID}", rest)
        return {"from": _id(found[1]), "to": _id(found[2])} if found else None
    if name == "type":
        found = re.fullmatch(rf"{_ID}\s+(\+\s+)?(.+)", rest)
        added = {"clear": False} if found and found[2] else {}
        return {"element": _id(found[1]), "text": _text(found[3])} | added if found else None
    if name == "select":
        found = re.fullmatch(rf"{_ID}\s+(.+)", rest)
        return {"element": _id(found[1]), "option": _options(found[2])} if found else None
    if name == "wait":
        found = re.fullmatch(r"(\d+(?:\.\d+)?)?\s*(?:s|seconds?)?", rest)
        return {"seconds": float(found[1])} if found and found[1] else {} if found else None
    first = "key" if name == "key" else "direction"
    found = re.fullmatch(rf"(\S+)(?:\s+{_ID})?", rest)
    if not found:
        return None
    return {first: found[1].strip("\"'") or found[1]} | ({"element": _id(found[2])} if found[2] else {})


def _id(text: str) -> str:
    return text if text.startswith("e") else f"e{text}"


def _text(written: str) -> str:
    """A quoted text, or the words as they stand."""
    if len(written) >= 2 and written[0] == written[-1] and written[0] in "\"'":
        try:
            return json.loads(written) if written[0] == '"' else written[1:-1]
        except json.JSONDecodeError:
            return written[1:-1]
    return written


def _options(written: str) -> str | list[str]:
    quoted = _STRING.findall(written)
    if len(quoted) > 1 and not _STRING.sub("", written).strip(" ,"):
        return [_text(one) for one in quoted]
    return _text(written)
