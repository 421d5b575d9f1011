"""What a policy is shown of its history."""

import pytest

from serve.environments.context import ContextSettings, Conversation, Turn

FIRST = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]


def turn(number: int, image: bool = False) -> Turn:
    results: list[dict] = [{"role": "tool", "tool_call_id": f"c{number}", "content": f"r{number}"}]
    if image:
        parts = [{"type": "text", "text": "The screen:"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        results.append({"role": "user", "content": parts})
    answer = {"role": "assistant", "content": f"a{number}", "tool_calls": [{"id": f"c{number}"}]}
    return Turn(answer, tuple(results), f"did {number}")


def shown(settings: ContextSettings, turns: int) -> list[dict]:
    talk = Conversation(FIRST, settings)
    for number in range(turns):
        talk.add(turn(number))
    return talk.messages()


def test_keep_all_shows_everything() -> None:
    assert [m["content"] for m in shown(ContextSettings(), 3)] == ["S", "U", "a0", "r0", "a1", "r1", "a2", "r2"]


def test_head_tail_says_what_is_left_out() -> None:
    messages = shown(ContextSettings(kind="head_tail", head=1, tail=2), 6)
    assert [m["content"] for m in messages[2:]] == ["a0", "r0", "a4", "r4", "a5", "r5"]
    assert messages[1]["content"] == "U\n\n(3 earlier steps are left out here, after the first 1 of 6.)"


@pytest.mark.parametrize("turns", range(9))
@pytest.mark.parametrize("kind", ["keep_all", "head_tail", "summary"])
def test_an_answer_never_loses_its_results_and_the_last_turn_is_there(kind: str, turns: int) -> None:
    messages = shown(ContextSettings(kind=kind, head=2, tail=3), turns)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            assert messages[at + 1]["tool_call_id"] == message["tool_calls"][0]["id"]
    if turns:
        assert messages[-1]["content"] == f"r{turns - 1}"
    assert sum(m["role"] == "assistant" for m in messages) == (
        turns if kind == "keep_all" else min(turns, {"head_tail": 5, "summary": 3}[kind])
    )


def test_summary_tells_what_was_left_out_in_its_words() -> None:
    messages = shown(ContextSettings(kind="summary", tail=1), 3)
    assert messages[1]["content"] == "U\n\nSteps so far:\n1. did 0\n2. did 1"
    assert [m["content"] for m in messages[2:]] == ["a2", "r2"]


def test_only_the_last_pictures_are_shown() -> None:
    talk = Conversation(FIRST, ContextSettings(pictures=1))
    talk.add(turn(0, image=True))
    talk.add(turn(1, image=True))
    messages = talk.messages()
    assert messages[4]["content"] == "The screen:\n(an earlier picture)"
    assert messages[-1]["content"][1]["type"] == "image_url"


@pytest.mark.parametrize(("name", "value"), [("tail", 0), ("head", -1), ("tail", True), ("kind", "some")])
def test_settings_are_checked(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=str(value)):
        ContextSettings(**{name: value})
