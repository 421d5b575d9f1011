"""Answers are parsed the same however they are cut, and nothing that the model said is lost."""

import json
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.parsing import AnswerFormat, AnswerParser, Delta


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


TOOLS = [tool("weather"), tool("clock")]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CLOCK = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'


def parser(tools: Any = TOOLS, choice: Any = "auto", stop: Sequence[str] = (), **more: Any) -> AnswerParser:
    numbers = count()
    opened = more.pop("opened", False)
    form = AnswerFormat(starts_in_reasoning=opened)
    return AnswerParser(form, tools, choice, stop, make_id=lambda: str(next(numbers)), **more)


def assembled(deltas: list[Delta]) -> dict[str, Any]:
    """What a client that streams puts together."""
    content = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(delta.reasoning or "" for delta in deltas)
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        assert sum(part is not None for part in (delta.content, delta.reasoning, delta.tool_call)) == 1
        assert delta.content != "" and delta.reasoning != ""
        piece = delta.tool_call
        if piece is not None and piece.id is not None:
            assert piece.index == len(calls)
            calls.append({"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
        if piece is not None:
            calls[piece.index]["function"]["arguments"] += piece.arguments
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    return message | ({"reasoning": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


def parse(text: str, **settings: Any) -> dict[str, Any]:
    made = parser(**settings)
    deltas = made.push(text) + made.end()
    message = made.finish()
    assert assembled(deltas) == message
    return message


def names(message: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls", [])]


def test_plain_content_is_kept_as_it_is() -> None:
    for text in ("", " ", "\n\nHello \n", "a <b> c", "2 < 3", "<tool", "<think", "ends with <tool_call"):
        assert parse(text) == {"role": "assistant", "content": text}


def test_a_call() -> None:
    message = parse(CALL)
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    ]
    made = parser()
    made.push(CALL)
    assert made.finish_reason == "tool_calls" and not made.done


def test_parallel_calls_with_text_around() -> None:
    message = parse(f"Let me look.\n\n{CALL}\n{CLOCK}\n")
    assert message["content"] == "Let me look." and names(message) == ["weather", "clock"]
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "call_1"]
    message = parse(f"One.\n{CALL}\nTwo.")
    assert message["content"] == "One.\n\nTwo." and names(message) == ["weather"]


def test_calls_in_other_spellings() -> None:
    listed = '<tool_call>[{"name": "weather", "arguments": {}}, {"name": "clock", "arguments": {}}]</tool_call>'
    assert names(parse(listed)) == ["weather", "clock"]
    assert parse('<tool_call>{"name": "clock"}</tool_call>')["tool_calls"][0]["function"]["arguments"] == "{}"
    doubled = '<tool_call>{"name": "clock", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse(doubled)["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert names(parse('<tool_call>{"name": "clock", "parameters": {"a": "line\nbreak"}}</tool_call>')) == ["clock"]
    assert names(parse('<tool_call>{"name": "clock", "arguments": {}}')) == ["clock"]  # not closed, but complete


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "weather", "arguments": {</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call> done',
        "<tool_call>hello</tool_call>",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        '  text\n\n<tool_call>{"name": "weather", "argum',
        '<tool_call>{"name": "weather", "arguments": "oops}</tool_call> and more \n',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    made = parser()
    made.push(text)
    assert made.finish() == {"role": "assistant", "content": text}
    assert made.notes and made.finish_reason == "stop"


def test_a_good_call_after_a_bad_one() -> None:
    for bad in ("<tool_call>oops</tool_call>", '<tool_call>{"name": "weather', '<tool_call>{"a": 1}', "<tool_call>"):
        message = parse(f"{bad}\n{CALL}")
        assert names(message) == ["weather"] and message["content"] == bad


def test_marks_inside_arguments() -> None:
    for inside in ("</tool_call>", "<tool_call>", "<think>", 'a \\" </tool_call> \\\\'):
        message = parse(f'<tool_call>{{"name": "clock", "arguments": {{"a": "{inside}"}}}}</tool_call>')
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": json.loads(f'"{inside}"')}


def test_calls_are_not_parsed_where_none_are_wanted() -> None:
    assert parse(CALL, choice="none")["content"] == CALL
    assert parse(CALL, tools=None)["content"] == CALL


def test_reasoning() -> None:
    thought = {"role": "assistant", "content": "Yes.", "reasoning": "Let me see:\n\nhm"}
    assert parse("<think>\nLet me see:\n\nhm\n</think>\n\nYes.") == thought
    assert parse("\n<think>Let me see:\n\nhm</think>Yes.") == thought
    assert parse("Let me see:\n\nhm\n</think>\n\nYes.", opened=True) == thought
    assert parse("<think>\n\n</think>\n\nYes.") == {"role": "assistant", "content": "Yes."}
    assert parse("<think>cut sho") == {"role": "assistant", "content": "", "reasoning": "cut sho"}
    assert parse("I say <think>no</think>")["content"] == "I say <think>no</think>"
    message = parse(f"<think>a <tool_call> b</think>\n{CALL}")
    assert message["reasoning"] == "a <tool_call> b" and names(message) == ["weather"] and message["content"] is None
    assert parse("<think>a</think>b \n")["content"] == "b \n"
    assert parse("<think>a \n") == {"role": "assistant", "content": "", "reasoning": "a"}


def test_stop_strings() -> None:
    made = parser(stop=["END", "\n\n"])
    assert assembled(made.push("some text EN")) == {"role": "assistant", "content": "some text"}
    assert not made.done and made.stop_hit is None
    assert made.push("D and more") == []
    assert made.done and made.stop_hit == "END" and made.push("more") == []
    assert made.finish()["content"] == "some text "
    assert parse("a EN", stop=["END"])["content"] == "a EN"
    assert parse("abcd", stop=["abcd", "bc"])["content"] == "a"  # the one that is complete first
    assert parse("abc", stop=["c", "abc"])["content"] == ""  # of those, the one that begins first
    assert parse("END", stop=["END"])["content"] == ""
    with pytest.raises(ValueError, match="stop"):
        parser(stop=[""])


def test_a_stop_inside_a_call_leaves_content() -> None:
    assert parse(CALL, stop=["Oslo"])["content"] == CALL[: CALL.index("Oslo")]
    assert parse(f"{CALL}\nuser", stop=["\nuser"])["content"] is None


def test_forced_calls() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    prefix = '<tool_call>\n{"name": "weather", "arguments":'
    made = parser(choice=named, prefix=prefix)
    assert made.push(' {"city": "Oslo"}}') == [] and not made.done
    assert len(made.push("\n</tool_call>\n<tool_")) == 2 and made.done
    assert made.push('call>{"name": "clock"}</tool_call>') == made.end() == []
    assert names(made.finish()) == ["weather"] and made.finish_reason == "tool_calls"
    assert names(parse('clock", "arguments": {}}', choice="required", prefix='<tool_call>\n{"name": "')) == ["clock"]
    assert parse(" nonsense", choice=named, prefix=prefix)["content"] == f"{prefix} nonsense"
    message = parse(" {}}\n</tool_call>", opened=True, choice=named, prefix=f"\n</think>\n\n{prefix}")
    assert names(message) == ["weather"] and "reasoning" not in message
    assert names(parse(CALL + CLOCK, parallel=False)) == ["weather"]


PIECES = [
    CALL, CLOCK, "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_", "call>", "\n", " ", "text", '"', "\\",
    '{"name": "weather", "arguments": {"a": "', '"}}', '{"name": "nope", "arguments": {}}', "STOP", "ST",
    "é👍", "<", "[{",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    stop=st.sampled_from([(), ("STOP",), ("STOP", "TOP", "\n "), ("<tool_call>",), ('"}}',)]),
    opened=st.booleans(),
    prefix=st.sampled_from(["", "<tool_call>\n{", '<tool_call>\n{"name": "weather", "arguments":']),
    choice=st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "weather"}}]),
)
def test_however_it_is_cut(
    text: str, cuts: list[int], stop: Sequence[str], opened: bool, prefix: str, choice: Any
) -> None:
    settings = {"stop": stop, "opened": opened, "prefix": prefix, "choice": choice}
    whole = parse(text, **settings)
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(at)]
    for cut in (pieces, list(text)):
        made = parser(**settings)
        deltas = [delta for piece in cut for delta in made.push(piece)] + made.end()
        assert assembled(deltas) == made.finish() == whole


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join))
def test_nothing_is_lost(text: str) -> None:
    message = parse(text)
    if "reasoning" not in message and "tool_calls" not in message:
        assert message["content"] == text or text.lstrip().startswith("<think>")
    kept = "".join(
        (message.get("reasoning", ""), message["content"] or "", *(str(c) for c in message.get("tool_calls", [])))
    )
    for word in ("text", "é👍", "STOP", "nope"):
        assert kept.count(word) >= text.count(word)


def test_long_answers_cost_little_per_character() -> None:
    import time

    made = parser(stop=["\n\nuser:"])
    start_s = time.process_time()
    for _ in range(20_000):
        made.push("word ")
    body = '<tool_call>{"name": "clock", "arguments": {"a": "' + "x" * 20_000 + '"}}</tool_call>'
    for char in body:
        made.push(char)
    made.push("<tool_call>" * 3000 + '<tool_call>{"' * 3000)
    made.end()
    assert names(made.finish()) == ["clock"]
    assert time.process_time() - start_s < 5
