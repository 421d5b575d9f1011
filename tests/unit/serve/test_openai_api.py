"""Requests are checked field by field; answers and errors have OpenAI's shapes."""

from typing import Any

import orjson
import pytest

from serve.openai_answers import ChunkWriter, completion, usage
from serve.openai_api import ApiError, parse_chat, parse_object

HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HI], **fields}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "x", "tool_call_id": {}}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "content": "x", "function_call": "foo"}]}, "messages[0].function_call"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": 300 * '{"a":' + "1" + 300 * "}"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": 2000 * "[" + 2000 * "]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"n": 2}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [TOOL, {"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[1].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(body(**fields), 100)
    assert (caught.value.status, caught.value.param) == (400, param)
    error = orjson.loads(caught.value.body())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_what_openclaw_sends_is_taken() -> None:
    request = parse_chat(
        body(
            stream=True,
            stream_options={"include_usage": True},
            tools=[TOOL],
            tool_choice="auto",
            max_completion_tokens=8192,
            store=False,
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
            ],
        ),
        100,
    )
    assert request.stream and request.include_usage and request.max_tokens == 8192
    assert request.tool_choice == "auto" and request.ignored == ()
    assert request.engine == {"temperature": 1.0, "top_p": 1.0}


def test_sampling_goes_to_the_engine_under_its_names() -> None:
    request = parse_chat(
        body(temperature=0, top_k=5, seed=-1, stop="END", logit_bias={"7": -100}, presence_penalty=0.5,
             response_format={"type": "json_object"}),
        100,
    )  # fmt: skip
    assert request.engine == {
        "temperature": 0, "top_p": 1.0, "top_k": 5, "sampling_seed": (1 << 31) - 1, "stop": ["END"],
        "logit_bias": {"7": -100}, "presence_penalty": 0.5, "json_schema": '{"type":"object"}',
    }  # fmt: skip
    assert request.sampling["seed"] == -1 and request.sampling["response_format"] == {"type": "json_object"}


def test_unknown_fields_are_named_and_common_ones_are_not() -> None:
    assert parse_chat(body(foo=1, user="u", metadata={}), 100).ignored == ("foo",)


def test_the_newer_limit_wins() -> None:
    assert parse_chat(body(max_tokens=5, max_completion_tokens=7), 100).max_tokens == 7
    assert parse_chat(body(max_tokens=5), 100).max_tokens == 5
    assert parse_chat(body(), 100).max_tokens is None


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"a":NaN}'])
def test_what_is_no_json_object_is_a_400(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(data)
    assert caught.value.status == 400


def test_half_an_emoji_becomes_a_replacement_character() -> None:
    assert parse_object(b'{"a":"x\\ud83d","b":"\\ud83d\\ude00"}') == {"a": "x\ufffd", "b": "\U0001f600"}


def events(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(event[6:]) for event in data.split(b"\n\n") if event]


@pytest.mark.parametrize("include_usage", [False, True])
def test_hand_built_events_are_what_openai_sends(include_usage: bool) -> None:
    writer = ChunkWriter("chatcmpl-1", 12, 'm"x', include_usage)
    data = writer.role() + writer.delta({"content": 'say "hé"\n'}) + writer.last("stop")
    role, delta, last = events(data)
    for event in (role, delta, last):
        assert event["id"] == "chatcmpl-1" and event["model"] == 'm"x' and event["created"] == 12
        assert event["object"] == "chat.completion.chunk"
        assert ("usage" in event) is include_usage
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert delta["choices"][0]["delta"] == {"content": 'say "hé"\n'}
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    (counted,) = events(writer.usage(usage(3, 4)))
    assert counted["choices"] == [] and counted["usage"]["total_tokens"] == 7


def test_a_whole_answer_is_what_the_official_client_reads() -> None:
    from openai.types.chat import ChatCompletion

    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    data = completion(
        id="chatcmpl-1", created=12, model="m", finish_reason="tool_calls", counts=usage(3, 4), logprobs=None,
        message={"role": "assistant", "content": None, "tool_calls": [call]},
    )  # fmt: skip
    answer = ChatCompletion.model_validate_json(data)
    assert answer.choices[0].message.tool_calls is not None
    assert answer.usage is not None and answer.usage.total_tokens == 7


@pytest.mark.parametrize("depth", [101, 300, 1000])
def test_what_is_nested_too_deep_is_refused(depth: int) -> None:
    schema = depth * '{"properties":' + "{}" + depth * "}"
    body = f'{{"response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}}}'
    with pytest.raises(ApiError, match="nested deeper than 100 levels") as fault:
        parse_object(body.encode())
    assert fault.value.status == 400
    assert parse_object(b'{"a": ' + 99 * b"[" + 99 * b"]" + b"}")
