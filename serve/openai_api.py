"""The OpenAI chat-completions API as data: requests checked by hand, answers and errors in OpenAI's shapes.

What it does: `parse_chat(body)` gives a `ChatRequest` or an `ApiError` that names the field; `ChunkWriter` builds the
bytes of a streamed answer without serialising what does not change; `completion(...)` the whole one.
What it leaves out: HTTP (`serve/gateway.py`), the answer itself (`serve/answering.py`). No pydantic: a hot path.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 256

# Fields that clients send and that change nothing here; said nowhere, since every client sends some.
SILENT = frozenset(
    {"user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
    | {"reasoning_effort", "session_id", "verbosity", "modalities", "reasoning"}
)
REFUSED = {
    "functions": "use tools instead",
    "function_call": "use tool_choice instead",
    "audio": "this model writes text only",
    "prediction": "leave it out",
    "web_search_options": "this server searches nothing",
}


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "overloaded_error"}


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked request."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    tool_choice: Any  # "none", "auto", "required" or {"type": "function", "function": {"name": ...}}
    parallel: bool
    stream: bool
    include_usage: bool
    max_tokens: int | None  # None: as many as the window holds
    stop: tuple[str, ...]
    sampling: dict[str, Any]  # temperature, top_p and what else was given, by OpenAI's names
    engine: dict[str, Any]  # the same by SGLang's names, without max_new_tokens
    logprobs: bool
    top_logprobs: int
    ignored: tuple[str, ...] = ()  # fields that mean nothing here


@dataclass(frozen=True, slots=True)
class _Number:
    """One sampling field: its range, its default, its name at the engine."""

    low: float
    high: float
    engine: str
    whole: bool = False
    default: float | None = None


_SAMPLING = {
    "temperature": _Number(0, 2, "temperature", default=1.0),
    "top_p": _Number(0, 1, "top_p", default=1.0),
    "top_k": _Number(-1, 1 << 30, "top_k", whole=True),
    "min_p": _Number(0, 1, "min_p"),
    "frequency_penalty": _Number(-2, 2, "frequency_penalty"),
    "presence_penalty": _Number(-2, 2, "presence_penalty"),
    "repetition_penalty": _Number(0, 2, "repetition_penalty"),
    "min_tokens": _Number(0, 1 << 30, "min_new_tokens", whole=True),
    "seed": _Number(-(1 << 63), (1 << 64) - 1, "sampling_seed", whole=True),
}
_READ = frozenset(
    {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "max_tokens"}
    | {"max_completion_tokens", "stop", "n", "logprobs", "top_logprobs", "logit_bias", "response_format", "ignore_eos"}
)
_KNOWN = _READ | frozenset(_SAMPLING) | SILENT | frozenset(REFUSED)


def parse_object(data: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        body = _lenient(data, error)
    if not isinstance(body, dict):
        raise ApiError(400, f"The body must be a JSON object, not {_name(body)}.", code="invalid_json")
    return body


def _lenient(data: bytes, error: ValueError) -> Any:
    """JavaScript clients that cut a string inside an emoji send half a surrogate pair: it becomes U+FFFD."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def mend(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(value, list):
            return [mend(item) for item in value]
        return {mend(key): mend(item) for key, item in value.items()} if isinstance(value, dict) else value

    try:
        return mend(json.loads(data, parse_constant=refuse))
    except (ValueError, RecursionError):
        raise ApiError(400, f"The body is not JSON: {error}", code="invalid_json") from None


def parse_chat(body: dict[str, Any], vocab_size: int) -> ChatRequest:
    """Check every field that we read."""
    for name, instead in REFUSED.items():
        if body.get(name) is not None:
            raise wrong(name, f"{name} is not supported: {instead}.", "unsupported_parameter")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model", f"model must be the name of a model, a string, not {_name(model)}.")
    if (n := _integer(body, "n", 1, 128)) not in (None, 1):
        raise wrong("n", f"n is {n}: this server gives one answer a request; send it {n} times.", "unsupported_value")
    tools = _tools(body.get("tools"))
    sampling, engine = _sampling(body, vocab_size)
    stop = _stop(body.get("stop"))
    if stop:
        sampling["stop"], engine["stop"] = list(stop), list(stop)
    stream = bool(_boolean(body, "stream"))
    wanted = _integer(body, "max_completion_tokens", 1, 1 << 31)
    older = _integer(body, "max_tokens", 1, 1 << 31)
    top = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    logprobs = bool(_boolean(body, "logprobs"))
    if top and not logprobs:
        raise wrong("top_logprobs", "top_logprobs needs logprobs to be true.")
    return ChatRequest(
        model=model,
        messages=_messages(body.get("messages")),
        tools=tools,
        tool_choice=_tool_choice(body.get("tool_choice"), tools),
        parallel=_boolean(body, "parallel_tool_calls") is not False,
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream),
        max_tokens=wanted if wanted is not None else older,
        stop=stop,
        sampling=sampling,
        engine=engine,
        logprobs=logprobs,
        top_logprobs=top,
        ignored=tuple(sorted(body.keys() - _KNOWN)),
    )


def _name(value: Any) -> str:
    """A JSON value's type, for people."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return "null" if value is None else names[type(value)]


def _boolean(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, f"{name} must be true or false, not {_name(value)}.")
    return value


def _number(body: dict[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, f"{name} must be a number, not {_name(value)}.")
    if not low <= value <= high:
        raise wrong(name, f"{name} is {value}, but must be from {low:g} to {high:g}.")
    return value


def _integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        what = f"{value}" if isinstance(value, float) else _name(value)
        raise wrong(name, f"{name} must be a whole number, not {what}.")
    if not low <= value <= high:
        raise wrong(name, f"{name} is {value}, but must be from {low} to {high}.")
    return value


def _sampling(body: dict[str, Any], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was asked for, and what the engine is told."""
    asked: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    for name, kind in _SAMPLING.items():
        read = _integer if kind.whole else _number
        value = read(body, name, kind.low, kind.high)  # type: ignore[operator]
        if value is None:
            value = kind.default
        if value is not None:
            asked[name], engine[kind.engine] = value, value
    if engine["top_p"] == 0:
        raise wrong("top_p", "top_p is 0, but must be above it: for the likeliest token alone set temperature to 0.")
    if engine.get("top_k") == 0:
        raise wrong("top_k", "top_k is 0, but must be 1 or more, or -1 for all.")
    if "sampling_seed" in engine:
        engine["sampling_seed"] &= (1 << 31) - 1
    if bias := _logit_bias(body.get("logit_bias"), vocab_size):
        asked["logit_bias"], engine["logit_bias"] = bias, bias
    if _boolean(body, "ignore_eos"):
        asked["ignore_eos"], engine["ignore_eos"] = True, True
    if schema := _schema(body.get("response_format")):
        asked["response_format"], engine["json_schema"] = body["response_format"], schema
    return asked, engine


def _logit_bias(value: Any, vocab_size: int) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong("logit_bias", f"logit_bias must map token ids to numbers, not be {_name(value)}.")
    for token, bias in value.items():
        if not token.isdigit() or int(token) >= vocab_size:
            raise wrong("logit_bias", f"logit_bias names {token!r}, but token ids are from 0 to {vocab_size - 1}.")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise wrong("logit_bias", f"logit_bias of token {token} must be a number from -100 to 100.")
    return value


def _schema(value: Any) -> str | None:
    """The JSON schema that the engine must keep to; None for plain text."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type":"object"}'
    if kind == "json_schema":
        given = value.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        if not isinstance(schema, dict):
            raise wrong("response_format", "response_format.json_schema.schema must be an object, a JSON schema.")
        return orjson.dumps(schema).decode()
    raise wrong("response_format", "response_format must be an object whose type is text, json_object or json_schema.")


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(text, str) and text for text in given):
        raise wrong("stop", "stop must be a string or an array of strings, none of them empty.")
    if len(given) > MAX_STOPS:
        raise wrong("stop", f"stop has {len(given)} strings, but at most {MAX_STOPS} are taken.")
    return tuple(given)


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong("stream_options", f"stream_options must be an object, not {_name(value)}.")
    if not stream:
        raise wrong("stream_options", "stream_options needs stream to be true.")
    wanted = value.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise wrong("stream_options.include_usage", "stream_options.include_usage must be true or false.")
    return bool(wanted)


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        what = "empty" if value == [] else _name(value)
        raise wrong("messages", f"messages must be an array with at least one message, not {what}.")
    for at, message in enumerate(value):
        _message(message, f"messages[{at}]")
    return value


def _message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise wrong(where, f"{where} must be an object, not {_name(message)}.")
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
        raise wrong(f"{where}.content", f"{where}.content must be a string or an array, not {_name(content)}.")
    if role == "tool" and not isinstance(message.get("tool_call_id", ""), str):
        raise wrong(f"{where}.tool_call_id", f"{where}.tool_call_id must be a string.")
    if calls is not None:
        if not isinstance(calls, list):
            raise wrong(f"{where}.tool_calls", f"{where}.tool_calls must be an array, not {_name(calls)}.")
        for at, call in enumerate(calls):
            _call(call, f"{where}.tool_calls[{at}]")


def _part(part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise wrong(f"{where}.text", f"{where}.text must be a string, not {_name(text)}.")
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


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise wrong("tools", f"tools must be an array, not {_name(value)}.")
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


def _tool_choice(value: Any, tools: list[dict[str, Any]] | None) -> Any:
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


# Answers


def usage(prompt: int, answer: int) -> dict[str, int]:
    """Token counts."""
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def completion(
    *,
    id: str,
    created: int,
    model: str,
    message: dict[str, Any],
    finish_reason: str,
    counts: dict[str, int],
    logprobs: list[dict[str, Any]] | None,
) -> bytes:
    """A whole answer."""
    choice = {
        "index": 0,
        "message": {**message, "refusal": None},
        "logprobs": None if logprobs is None else {"content": logprobs, "refusal": None},
        "finish_reason": finish_reason,
    }
    return orjson.dumps(
        {
            "id": id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": counts,
        }
    )


@dataclass(slots=True)
class ChunkWriter:
    """The server-sent events of one streamed answer, as bytes. With usage asked for, every chunk says `usage: null`."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    _head: bytes = field(init=False)
    _tail: bytes = field(init=False)

    def __post_init__(self) -> None:
        fields = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        self._head = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def role(self) -> bytes:
        """The first chunk."""
        return b"".join((self._head, b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,',
                         b'"finish_reason":null}', self._tail))  # fmt: skip

    def delta(self, delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """A piece of content, reasoning or a tool call."""
        shown = b"null" if logprobs is None else orjson.dumps({"content": logprobs, "refusal": None})
        return b"".join((self._head, b'{"index":0,"delta":', orjson.dumps(delta), b',"logprobs":', shown,
                         b',"finish_reason":null}', self._tail))  # fmt: skip

    def last(self, finish_reason: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """The chunk that says why the answer ended."""
        shown = b"null" if logprobs is None else orjson.dumps({"content": logprobs, "refusal": None})
        return b"".join((self._head, b'{"index":0,"delta":{},"logprobs":', shown, b',"finish_reason":"',
                         finish_reason.encode(), b'"}', self._tail))  # fmt: skip

    def usage(self, counts: dict[str, int]) -> bytes:
        """The chunk with the token counts and no choice."""
        return b"".join((self._head, b'],"usage":', orjson.dumps(counts), b"}\n\n"))


DONE = b"data: [DONE]\n\n"
