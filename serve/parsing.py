"""An answer's text, as it comes, into content, reasoning and tool calls.

What it does: `AnswerParser.push(text)` gives the deltas that are certain by now, `finish()` the whole assistant
message. However the text is cut into pieces, the deltas together are that message. Stop strings are cut off and never
leak in part. `<tool_call>{"name": …, "arguments": …}</tool_call>` of a declared function becomes a call, given out
when it is complete and valid (so that nothing must be taken back); anything else stays content, with a note.
What it leaves out: other call formats; token ids (`serve/decoding.py`).

Rules on white space: around calls and after reasoning it is dropped, everywhere else it is kept.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from serve.stop_strings import StopCutter, partial_end
from storage.records import new_id

WHITE = " \t\r\n"
NOT_WHITE = re.compile(rf"[^{WHITE}]")
MAX_FAULTS = 64  # after so many calls that are none, no more are looked for (each costs a look through what follows)


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """How a model writes what is not content."""

    tool_open: str = "<tool_call>"
    tool_close: str = "</tool_call>"
    think_open: str = "<think>"
    think_close: str = "</think>"
    starts_in_reasoning: bool = False  # the prompt ends inside think_open


@dataclass(frozen=True, kw_only=True)
class ToolCallPiece:
    """A part of a call: first id and name, then the arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Exactly one of the three is set."""

    content: str | None = None
    reasoning: str | None = None
    tool_call: ToolCallPiece | None = None


@dataclass(kw_only=True)
class _CallBody:
    """The text inside an open call, and how far it has been looked through."""

    text: str = ""
    at: int = 0
    in_string: bool = False

    def closed_at(self, mark: str) -> int | None:
        """Where the closing mark stands outside a JSON string; None while it doesn't, or not fully."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == mark[0] and not self.in_string:
                if self.text.startswith(mark, self.at):
                    return self.at
                if mark.startswith(self.text[self.at :]):
                    return None
            if char == "\\" and self.in_string:
                if self.at + 1 >= len(self.text):
                    return None
                self.at += 1
            elif char == '"':
                self.in_string = not self.in_string
            self.at += 1
        return None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def read_calls(body: str, declared: frozenset[str]) -> list[tuple[str, str]] | str:
    """[(name, arguments as JSON)], or why it is no call. A list of calls is taken too (SmolLM2 writes lists)."""
    try:
        value = json.loads(body, strict=False, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    calls = []
    for call in value if isinstance(value, list) else [value]:
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or name not in declared:
            return f"{name!r} is not a declared function"
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, strict=False, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                return f"arguments of {name} are not JSON: {error}"
        if not isinstance(arguments, dict):
            return f"arguments of {name} are no object"
        calls.append((name, json.dumps(arguments, ensure_ascii=False)))
    return calls or "an empty list of calls"


@dataclass
class _Answer:
    """The message so far, and the white space that waits for what follows it."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    held: str = ""
    after_reasoning: bool = False


class AnswerParser:
    """One answer. Not thread-safe."""

    def __init__(
        self,
        format: AnswerFormat,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: Any = "auto",
        stop: Sequence[str] | None = None,
        *,
        prefix: str = "",
        parallel: bool = True,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        """`prefix`: what `Renderer.forced_prefix` put at the prompt's end. Not `parallel`: done after one call."""
        calls = bool(tools) and tool_choice != "none"
        self._format = format
        self._declared = frozenset(tool["function"]["name"] for tool in tools or []) if calls else frozenset()
        self._stop = StopCutter(stop or ())
        self._one_call = not parallel or isinstance(tool_choice, dict)
        self._make_id = make_id
        self._answer = _Answer()
        self._state: Literal["start", "reasoning", "content", "call"] = "start"
        if format.starts_in_reasoning:
            self._state = "reasoning"
        self._buffer = ""
        self._body = _CallBody()
        self._enough = False
        self.notes: list[str] = []  # why something that looked like a call stayed content
        self._early = self._feed(prefix) if prefix else []  # nothing, unless the prefix is odd

    @property
    def stop_hit(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stop.hit

    @property
    def done(self) -> bool:
        """Nothing that comes can matter any more: the engine's request may be aborted."""
        return self._stop.hit is not None or self._enough

    @property
    def finish_reason(self) -> Literal["tool_calls", "stop"]:
        """As OpenAI names it; the gateway knows better where the engine ran out of tokens."""
        return "tool_calls" if self._answer.calls else "stop"

    def push(self, text: str) -> list[Delta]:
        """The deltas that are certain now."""
        early, self._early = self._early, []
        return early + self._feed(self._stop.push(text))

    def end(self) -> list[Delta]:
        """The last deltas; call it before `finish`, when the text has ended."""
        early, self._early = self._early, []
        deltas = early + self._feed(self._stop.finish()) + self._feed("", last=True)
        if self._state == "content" and not self._answer.calls:
            deltas += self._content("", flush=True)
        return deltas

    def finish(self) -> dict[str, Any]:
        """The assistant message. `end()` is called if it was not."""
        self.end()
        content = "".join(self._answer.content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._answer.reasoning:
            message["reasoning"] = "".join(self._answer.reasoning)
        if self._answer.calls:
            message["content"] = content or None
            message["tool_calls"] = self._answer.calls
        return message

    def _feed(self, text: str, *, last: bool = False) -> list[Delta]:
        if self._enough:
            return []
        self._buffer += text
        deltas: list[Delta] = []
        steps = {
            "start": self._in_start, "reasoning": self._in_reasoning, "content": self._in_content, "call": self._in_call
        }  # fmt: skip
        while not self._enough and steps[self._state](deltas, last):
            pass
        return deltas

    # Each step takes from the buffer, adds deltas, and says whether the next step may go on.

    def _in_start(self, deltas: list[Delta], last: bool) -> bool:
        mark, ahead = self._format.think_open, self._buffer.lstrip(WHITE)
        if ahead.startswith(mark):
            self._buffer = ahead[len(mark) :]
            self._state = "reasoning"
            return True
        if not last and mark.startswith(ahead):
            return False
        self._state = "content"
        return True

    def _in_reasoning(self, deltas: list[Delta], last: bool) -> bool:
        mark = self._format.think_close
        at = self._buffer.find(mark)
        if at < 0:
            keep = 0 if last else partial_end(self._buffer, mark)
            said, self._buffer = _split(self._buffer, len(self._buffer) - keep)
            self._reason(said, deltas)
            return False
        self._reason(self._buffer[:at], deltas)
        self._buffer = self._buffer[at + len(mark) :]
        self._answer.held, self._answer.after_reasoning = "", True
        self._state = "content"
        return True

    def _in_content(self, deltas: list[Delta], last: bool) -> bool:
        mark = self._format.tool_open
        looks = bool(self._declared) and len(self.notes) < MAX_FAULTS
        at = self._buffer.find(mark) if looks else -1
        if at < 0:
            keep = partial_end(self._buffer, mark) if looks and not last else 0
            said, self._buffer = _split(self._buffer, len(self._buffer) - keep)
            deltas += self._content(said)
            return False
        deltas += self._content(self._buffer[:at])
        self._buffer = self._buffer[at + len(mark) :]
        self._body = _CallBody()
        self._state = "call"
        return True

    def _in_call(self, deltas: list[Delta], last: bool) -> bool:
        self._body.text += self._buffer
        self._buffer = ""
        text, mark = self._body.text, self._format.tool_close
        begins = NOT_WHITE.search(text)
        if begins and begins.group() not in "{[":
            return self._close(text[: begins.end()], "", deltas)  # no call: not held any longer
        at = self._body.closed_at(mark)
        if at is not None:
            return self._close(text[:at], text[at + len(mark) :], deltas)
        return self._close(text, "", deltas) if last else False

    def _close(self, body: str, rest: str, deltas: list[Delta]) -> bool:
        calls = read_calls(body, self._declared)
        if isinstance(calls, str):
            self.notes.append(f"a tool call was left as content: {calls}")
            deltas += self._content(self._format.tool_open)
            self._buffer = self._body.text  # looked through again, as content
        else:
            for name, arguments in calls[:1] if self._one_call else calls:
                deltas += self._call(name, arguments)
            self._enough = self._one_call
            self._buffer = rest
        self._state = "content"
        return True

    def _reason(self, said: str, deltas: list[Delta]) -> None:
        said = self._answer.held + said
        if not self._answer.reasoning:
            said = said.lstrip(WHITE)
        out = said.rstrip(WHITE)
        self._answer.held = said[len(out) :]
        if out:
            self._answer.reasoning.append(out)
            deltas.append(Delta(reasoning=out))

    def _content(self, said: str, *, flush: bool = False) -> list[Delta]:
        said = self._answer.held + said
        if not self._answer.content and (self._answer.calls or self._answer.after_reasoning):
            said = said.lstrip(WHITE)
        out = said if flush else said.rstrip(WHITE)
        self._answer.held = said[len(out) :]
        if not out:
            return []
        self._answer.content.append(out)
        return [Delta(content=out)]

    def _call(self, name: str, arguments: str) -> list[Delta]:
        index, id = len(self._answer.calls), f"call_{self._make_id()}"
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._answer.calls.append(call)
        return [
            Delta(tool_call=ToolCallPiece(index=index, id=id, name=name)),
            Delta(tool_call=ToolCallPiece(index=index, arguments=arguments)),
        ]


def _split(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]
