"""A chat request, checked by hand, field by field: a `ChatRequest`, or an `ApiError` that names the field.

What it leaves out: messages and tools (`serve/openai_messages.py`), answers (`serve/openai_answers.py`), HTTP
(`serve/gateway.py`). No pydantic: a hot path.
"""

import json
from dataclasses import dataclass
from typing import Any

import orjson

from serve.api_error import ApiError, type_name, wrong
from serve.openai_messages import MAX_DEPTH, read_messages, read_tool_choice, read_tools, too_deep

__all__ = ["ApiError", "ChatRequest", "parse_chat", "parse_object", "wrong"]

MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20

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
        raise ApiError(400, f"The body must be a JSON object, not {type_name(body)}.", code="invalid_json")
    if too_deep(body):
        raise ApiError(400, f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")
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
        raise wrong("model", f"model must be the name of a model, a string, not {type_name(model)}.")
    if (n := _integer(body, "n", 1, 128)) not in (None, 1):
        raise wrong("n", f"n is {n}: this server gives one answer a request; send it {n} times.", "unsupported_value")
    tools = read_tools(body.get("tools"))
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
        messages=read_messages(body.get("messages")),
        tools=tools,
        tool_choice=read_tool_choice(body.get("tool_choice"), tools),
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


def _boolean(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, f"{name} must be true or false, not {type_name(value)}.")
    return value


def _number(body: dict[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, f"{name} must be a number, not {type_name(value)}.")
    if not low <= value <= high:
        raise wrong(name, f"{name} is {value}, but must be from {low:g} to {high:g}.")
    return value


def _integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        what = f"{value}" if isinstance(value, float) else type_name(value)
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
        raise wrong("logit_bias", f"logit_bias must map token ids to numbers, not be {type_name(value)}.")
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9 and int(token) < vocab_size):
            raise wrong("logit_bias", f"logit_bias names {token[:20]!r}, but token ids are from 0 to {vocab_size - 1}.")
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
        raise wrong("stream_options", f"stream_options must be an object, not {type_name(value)}.")
    if not stream:
        raise wrong("stream_options", "stream_options needs stream to be true.")
    wanted = value.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise wrong("stream_options.include_usage", "stream_options.include_usage must be true or false.")
    return bool(wanted)
