"""What of a message counts, whatever its spelling."""

import time

import pytest

from serve.anchors import shape_of
from serve.messages import (
    canonical,
    is_ephemeral,
    last_user_index,
    last_user_text,
    next_state_of,
    question_of,
    strip_ephemeral,
    text_of,
)
from tests.unit.serve.session_builders import calls, result, says, system, user

CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nWorkspace: none.\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (says("a  b\n\nc "), says("a b c")),
        (says("a"), says([{"type": "text", "text": "a"}])),
        (says("<think>hm</think>\n\na"), says("a")),
        (says("hm</think>a"), says("a")),
        (says("[[reply_to_current]] a"), says("a")),
        ({**says("a"), "reasoning_content": "hm"}, says("a")),
        (says([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]), says("a")),
        (calls("ls", arguments='{"b": 1.0, "a": "\\u00e9"}'), calls("ls", arguments='{"a":"é","b":1}')),
        (calls("ls", text=""), calls("ls", text=None)),
        (calls("ls", arguments=""), calls("ls", arguments="{}")),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "ls", "input": {"a": 1}}]},
            calls("ls", arguments='{"a": 1}'),
        ),
        ({**calls("ls"), "tool_calls": [{**calls("ls")["tool_calls"][0], "id": "other"}]}, calls("ls")),
        (user("[Sun 2026-11-29 14:27 UTC] hi"), user("hi")),
        (user("hi\n\nRuntime: agent=main | session=agent:main:main | host=x"), user("hi")),
        (user(f"hi\n{CONTEXT}"), user("hi")),
        (user("hi <system-reminder>be brief</system-reminder>"), user("hi")),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "done"}]},
            {"role": "tool", "tool_call_id": "y", "content": [{"type": "text", "text": "done"}]},
        ),
        ({"role": "developer", "content": "x"}, system("x")),
        (
            user('Sender ⟦openclaw:ctx⟧\n```json\n{"id": "7"}\n```\n\n[Sun 2026-11-29 14:27 UTC] hi'),
            user("hi"),
        ),
        (user('Conversation info (untrusted metadata):\n```json\n{"id": 7}\n```\n\nhi'), user("hi")),
    ],
)
def test_spellings_of_one_message_are_one(one: dict, other: dict) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (says("a"), user("a")),
        (says("a"), says("b")),
        (calls("ls", arguments='{"a": 1}'), calls("ls", arguments='{"a": "1"}')),
        (calls("ls"), calls("cat")),
        (calls("ls", "ls"), calls("ls")),
        (
            user([{"type": "image_url", "image_url": {"url": "data:1"}}]),
            user([{"type": "image_url", "image_url": {"url": "data:2"}}]),
        ),
    ],
)
def test_different_messages_are_two(one: dict, other: dict) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    "text",
    [
        CONTEXT,
        "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\ncut off",
        "<system-reminder>\nx\n</system-reminder>",
        "The conversation history before this point was compacted into the following summary:\n<summary>x</summary>",
        "This session is being continued from a previous conversation that ran out of context. x",
        "  \n ",
    ],
)
def test_blocks_of_the_client_are_nobodys_words(text: str) -> None:
    assert is_ephemeral(user(text))
    assert is_ephemeral(user([{"type": "text", "text": text}]))


def test_words_beside_a_block_stay() -> None:
    message = user([{"type": "text", "text": CONTEXT}, {"type": "text", "text": "and now?"}])
    assert last_user_text([message]) == "and now?"
    assert strip_ephemeral([user(CONTEXT), message]) == [user([{"type": "text", "text": "and now?"}])]


def test_a_mention_of_a_heartbeat_or_runtime_is_not_taken_out() -> None:
    text = "The line `Runtime: 3 s` is wrong.\n[Note] see below"
    assert last_user_text([user(text)]) == text


def test_parallel_results_are_one_next_state_under_their_names() -> None:
    answer = calls("ls", "cat")
    after = [result("a.txt", 0), result("hello", 1), user(CONTEXT), says("later"), user("not this")]
    assert next_state_of(after, [answer]) == ("tool", "ls: a.txt\n\ncat: hello")


def test_words_beside_results_come_last() -> None:
    assert next_state_of([result("denied"), user("don't do that")], [calls("rm")]) == (
        "tool",
        "rm: denied\n\nuser: don't do that",
    )


def test_nothing_followed() -> None:
    assert next_state_of([user(CONTEXT)]) is None
    assert next_state_of([says("more")]) is None
    assert next_state_of([]) is None


def test_an_empty_result_is_a_result() -> None:
    assert next_state_of([result("")], [calls("touch")]) == ("tool", "touch: ")


def test_question_and_hint_position() -> None:
    messages = [system("s"), user("first"), says("a"), user("second"), calls("ls"), result("x"), user(CONTEXT)]
    assert last_user_index(messages) == 3
    assert question_of(messages) == "second\n\nls: x"
    assert last_user_index([user(CONTEXT)]) is None
    assert question_of([]) == ""


def test_text_of_any_content() -> None:
    assert text_of(None) == ""
    assert text_of("a") == "a"
    assert text_of([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]) == "a\nb"
    assert text_of([{"type": "image_url", "image_url": {"url": "x"}}]).startswith("[image ")


def test_a_real_size_request_is_quick() -> None:
    """51 KB, as OpenClaw's first request; the best of some tries, since other work may run beside."""
    words = "All work and no play makes a dull agent, and here is some <b>markup</b> too. "
    messages = [system(words * 400), *[m for n in range(20) for m in (user(f"{n} {words * 6}"), says(words * 6))]]
    assert sum(len(m["content"]) for m in messages) > 45_000

    def took() -> float:
        started = time.perf_counter()
        shape_of(messages)
        return time.perf_counter() - started

    best_s = min(took() for _ in range(20))
    print(f"a 50 KB request boils down in {best_s * 1000:.2f} ms")
    assert best_s < 0.01


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x", "function_call": "foo"},
        {"role": "assistant", "tool_calls": ["foo", {"function": "foo"}, {"id": {}, "function": {"name": []}}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": 300 * '{"a":' + "1" + 300 * "}"}}],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 2000 * "[" + 2000 * "]"}}]},
        {"role": "function", "content": "x", "tool_call_id": {}, "name": []},
    ],
)
def test_what_older_gateways_took_can_be_read(message: dict) -> None:
    assert canonical(message) and not is_ephemeral(message)
    found = next_state_of([message, user("ok")] if message["role"] == "function" else [user("ok")], [message])
    assert found is not None and "ok" in found[1]
    assert shape_of([user("q"), message, user("ok")]).conversation != shape_of([user("q"), user("ok")]).conversation
