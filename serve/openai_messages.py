"""Messages, tools and tool_choice of a chat request, checked; what is wrong is named by its place, as messages[3].role.

What it leaves out: what the model's template makes of them (`serve/normal_form.py`).
"""

from typing import Any

from serve.api_error import type_name, wrong

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
MAX_TOOLS = 256


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
    if role == "tool" and not isinstance(message.get("tool_call_id", ""), str):
        raise wrong(f"{where}.tool_call_id", f"{where}.tool_call_id must be a string.")
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
    if not isinstance(function.get("arguments", ""), str | dict):
        raise wrong(f"{where}.function.arguments", f"{where}.function.arguments must be JSON in a string.")


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
