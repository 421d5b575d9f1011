"""Chat messages of any client, brought into the form that a model's template takes.

What it does: content arrays to text, developer to system, null content to "", arguments to the form the template
wants, reasoning under the name templates know, and, only where the template can't take them (`Traits`): tool results
as user messages, neighbours of one role merged, system text folded into the first user message.
What it leaves out: ephemeral blocks (they are part of the prompt; `serve/messages.py` knows them), rendering.
"""

import json
from collections.abc import Sequence
from typing import Any

from serve.chat_template import Message, Tool, Traits

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")


def content_text(content: Any, where: str) -> str:
    """The text of a message's content; several text parts are joined by a line break."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(f"{where}.content is {type(content).__name__}: give a string or a list of text parts")
    return "\n".join(_part_text(part, f"{where}.content[{n}]") for n, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return part["refusal"]
    raise ValueError(f"{where} is of type {kind!r}: this model reads text only; send it as a text part or leave it out")


def _arguments(given: Any, form: str) -> Any:
    """A call's arguments as "object" or as "string". What is no JSON object stays as it is."""
    if isinstance(given, str) and form == "object":
        try:
            parsed = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return given
        return parsed if isinstance(parsed, dict) else given
    if not isinstance(given, str) and form == "string":
        return json.dumps(given if given is not None else {}, ensure_ascii=False)
    return {} if given is None else given


def _calls(message: Message, where: str, form: str) -> list[dict[str, Any]]:
    given = message.get("tool_calls") or []
    if not isinstance(given, list | tuple):
        raise ValueError(f"{where}.tool_calls is {type(given).__name__}: give a list")
    calls = []
    for n, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(
                f"{where}.tool_calls[{n}] has no function.name: give type function with name and arguments"
            )
        function = {**function, "arguments": _arguments(function.get("arguments"), form)}
        calls.append({**call, "type": "function", "function": function})
    return calls


def _one(message: Any, where: str, traits: Traits) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise ValueError(f"{where}.role is {role!r}: it must be one of {', '.join(ROLES)}")
    role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
    out: Message = {"role": role, "content": content_text(message.get("content"), where)}
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            out[name] = message[name]
    if role == "assistant":
        calls = _calls(message, where, traits.arguments)
        if calls:
            out["tool_calls"] = calls
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            out["reasoning_content"] = reasoning
    return out


def call_text(call: dict[str, Any]) -> str:
    """A tool call in the Hermes form, for templates that don't render calls."""
    function = call["function"]
    given = function["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def _spell_out(message: Message, traits: Traits) -> Message:
    """Calls and results as text, where the template drops them."""
    if message["role"] == "tool" and not traits.consecutive_results:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if message.get("tool_calls") and not traits.calls:
        parts = [message["content"], *(call_text(call) for call in message["tool_calls"])]
        return {"role": "assistant", "content": "\n".join(part for part in parts if part)}
    return message


def _merge_system(messages: list[Message]) -> list[Message]:
    system = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(system)}, *rest] if system else rest


def _fold_system(messages: list[Message]) -> list[Message]:
    if not messages or messages[0]["role"] != "system":
        return messages
    return [{"role": "user", "content": messages[0]["content"]}, *messages[1:]]


def _join_neighbours(messages: list[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last and last["role"] == message["role"] != "tool" and not (set(last) | set(message)) & {"tool_calls"}:
            joined[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def normal_messages(messages: Sequence[Any], traits: Traits) -> list[Message]:
    """New messages in the form that the template takes; the given ones are left alone."""
    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError("messages is empty or no list: give at least one message")
    out = [_spell_out(_one(message, f"messages[{n}]", traits), traits) for n, message in enumerate(messages)]
    if not traits.several_system and sum(message["role"] == "system" for message in out) > (out[0]["role"] == "system"):
        out = _merge_system(out)
    if not traits.system:
        out = _fold_system(out)
    return out if traits.same_role_twice else _join_neighbours(out)


def normal_tools(tools: Any, tool_choice: Any) -> list[Tool] | None:
    """The declarations to render: none for tool_choice none."""
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list | tuple):
        raise ValueError(f"tools is {type(tools).__name__}: give a list of function declarations")
    for n, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
            raise ValueError(f"tools[{n}] (type {kind!r}) has no function.name: only function tools are served")
    return None if tool_choice == "none" else list(tools)
