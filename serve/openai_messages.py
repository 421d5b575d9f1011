"""Messages, tools and tool_choice of a chat request, checked; what is wrong is named by its place, as messages[3].role.

What it leaves out: what the model's template makes of them (`serve/normal_form.py`).
"""

from typing import Any

import orjson

from serve.api_error import type_name, wrong

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
MAX_TOOLS = 256
MAX_DEPTH = 100  # of JSON inside JSON; deeper than any tool's arguments or schema, and far from what parsers can't take


def read_messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        what = "empty" if value == [] else type_name(value)
        raise wrong("messages", f"messages must be an array with at least one message, not {what}.")
    for at, message in enumerate(value):
        _message(message, f"messages[{at}]")
    return value


def _message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise wrong(where, f"{where} must be an object, not {type_name(message)}.")
    role = message.get("role")
    if role not in ROLES:
        raise wrong(f"{where}.role", f"{where}.role is {role!r}, but must be one of {', '.join(ROLES)}.")
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and role != "assistant":
        raise wrong(f"{where}.content", f"{where}.content must be a string or an array of parts, not null.")
    if isinstance(content, list):
        for at, part in enumerate(content):
            _part(part, f"{where}.content[{at}]")
    elif content is not None and not isinstance(content, str):
        raise wrong(f"{where}.content", f"{where}.content must be a string or an array, not {type_name(content)}.")
    for name in ("tool_call_id", "name"):
        if not isinstance(message.get(name), str | None):
            raise wrong(f"{where}.{name}", f"{where}.{name} must be a string, not {type_name(message[name])}.")
    old = message.get("function_call")
    if old is not None:
        _function(old, f"{where}.function_call")
    if calls is not None:
        if not isinstance(calls, list):
            raise wrong(f"{where}.tool_calls", f"{where}.tool_calls must be an array, not {type_name(calls)}.")
        for at, call in enumerate(calls):
            _call(call, f"{where}.tool_calls[{at}]")


def _part(part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise wrong(f"{where}.text", f"{where}.text must be a string, not {type_name(text)}.")
        return
    if kind in ("image_url", "image", "input_image", "input_audio", "file", "video_url"):
        raise wrong(where, f"{where} is of type {kind}, but this model reads text only.", "unsupported_content")
    raise wrong(f"{where}.type", f"{where}.type is {kind!r}, but must be text.")


def _call(call: Any, where: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, f"{where} must be an object with function.name and function.arguments.")
    if not isinstance(call.get("id"), str | None):
        raise wrong(f"{where}.id", f"{where}.id must be a string, not {type_name(call['id'])}.")
    _function(function, f"{where}.function")


def _function(function: Any, where: str) -> None:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, f"{where} must be an object with name and arguments.")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str | dict):
        raise wrong(f"{where}.arguments", f"{where}.arguments must be JSON in a string.")
    if isinstance(arguments, str) and arguments.count("{") + arguments.count("[") > MAX_DEPTH:
        try:
            shallow = not too_deep(orjson.loads(arguments))
        except orjson.JSONDecodeError as fault:  # text that is no JSON is taken as it is
            shallow = "depth limit" not in str(fault)
        if not shallow:
            raise wrong(f"{where}.arguments", f"{where}.arguments is nested deeper than {MAX_DEPTH} levels.")


def too_deep(value: Any) -> bool:
    """Whether objects and arrays lie more than MAX_DEPTH levels inside each other."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise wrong("tools", f"tools must be an array, not {type_name(value)}.")
    if len(value) > MAX_TOOLS:
        raise wrong("tools", f"tools has {len(value)} functions, but at most {MAX_TOOLS} are taken.")
    for at, tool in enumerate(value):
        where = f"tools[{at}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise wrong(where, f"{where} must be an object of type function.")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise wrong(f"{where}.function.name", f"{where}.function must be an object with a name.")
        if not isinstance(function.get("parameters"), dict | None):
            raise wrong(
                f"{where}.function.parameters", f"{where}.function.parameters must be an object, a JSON schema."
            )
    return value


def read_tool_choice(value: Any, tools: list[dict[str, Any]] | None) -> Any:
    if value is None:
        return "auto" if tools else "none"
    if value in ("none", "auto"):
        return value
    if value == "required":
        if not tools:
            raise wrong("tool_choice", "tool_choice is required, but there are no tools.")
        return value
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise wrong("tool_choice", "tool_choice must be none, auto, required, or an object that names a function.")
    names = [tool["function"]["name"] for tool in tools or []]
    if name not in names:
        raise wrong("tool_choice", f"tool_choice names {name!r}, but tools has {', '.join(names) or 'nothing'}.")
    return {"type": "function", "function": {"name": name}}
