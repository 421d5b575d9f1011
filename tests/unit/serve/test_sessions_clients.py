"""The tracker on what real clients send: OpenClaw (recorded), and the shapes of others (written by hand)."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.session_fields import named_session
from tests.unit.serve.session_builders import Scene, calls, result, says, system, user

FIXTURES = Path(__file__).parent / "fixtures"
TALK = ["Hello, who are you?", "Tell me about tides.", "No, shorter please."]


def play(scene: Scene, name: str) -> list[str]:
    """Give the tracker a recorded client's requests; the exchanges' ids."""
    ids = []
    for row in json.loads((FIXTURES / f"openclaw_{name}.json").read_text()):
        body: dict[str, Any] = row["body"]
        named, fields = named_session(row["headers"], body)
        ids.append(
            scene.ask(
                body["messages"], row["answer"], tools=body.get("tools"), named_session=named, session_fields=fields,
                sampling={"max_tokens": body.get("max_completion_tokens")}, client=row["headers"].get("user-agent", ""),
            )
        )  # fmt: skip
    scene.wait(3)
    return ids


@pytest.mark.parametrize("name", ["plain", "affinity", "full"])
def test_openclaw_talks_for_three_turns(name: str) -> None:
    scene = Scene()
    first, second, third = play(scene, name)
    turns = [scene.turn(exchange_id) for exchange_id in (first, second, third)]
    assert [turn.relation for turn in turns] == ["first", "follow", "follow"]
    assert [turn.parent_id for turn in turns] == [None, first, second]
    assert [turn.kind for turn in turns] == ["main"] * 3
    assert len({turn.session_id for turn in turns}) == 1
    assert scene.next_of(first) == TALK[1] and scene.next_of(second) == TALK[2]  # the user's own words, nothing else
    if name == "affinity":
        assert turns[0].session_id == "s1"


def test_openclaw_flushes_its_memory_and_compacts() -> None:
    """Three compactions, each after a memory flush. The header's count moves, the session stays."""
    scene = Scene()
    ids = play(scene, "compaction")
    turns = [scene.turn(exchange_id) for exchange_id in ids]
    rows = json.loads((FIXTURES / "openclaw_compaction.json").read_text())
    assert [row["headers"]["x-session-affinity"] for row in rows] == [
        "s1:0", "s1:0", "s1:0", "s1:1", "s1:1", "s1:2", "s1:2", "s1:3"]  # fmt: skip
    assert {turn.session_id for turn in turns} == {"s1"}
    kinds = [turn.kind for turn in turns]
    assert kinds == ["main", "main", "side", "main", "side", "main", "side", "main"]
    assert {turn.why_kind.split(":")[0] for turn in turns if turn.kind == "side"} == {"a memory flush"}
    main = [exchange_id for exchange_id, kind in zip(ids, kinds, strict=True) if kind == "main"]
    assert [scene.turn(e).parent_id for e in main] == [None, *main[:-1]]
    assert [scene.turn(e).relation for e in main] == ["first", "follow", "branch", "branch", "branch"]
    for number, exchange_id in enumerate(main[:-1]):
        assert (scene.next_of(exchange_id) or "").startswith(f"Remember number {number + 1}: ")


def test_openclaw_calls_a_tool() -> None:
    """It makes call ids of its own and sends `content: null` for an empty answer."""
    scene = Scene()
    first, second, third = play(scene, "tools")
    assert scene.turn(second).parent_id == first and scene.turn(third).parent_id == second
    assert scene.next_of(first) == "session_status: Tool session_status not found"
    assert scene.next_of(second) == "Thanks, that is enough."


def test_two_openclaws_without_ids_say_the_same_first_words() -> None:
    scene = Scene()
    one = [json.loads((FIXTURES / "openclaw_plain.json").read_text())[n]["body"]["messages"] for n in range(2)]
    a = scene.ask(one[0], one[1][2], client="OpenAI/JS 7.15.0")
    b = scene.ask(one[0], "another answer than the first one got", client="OpenAI/JS 7.15.0")
    scene.ask([*one[0], says("another answer than the first one got"), user("b goes on")], "ok",
              client="OpenAI/JS 7.15.0")  # fmt: skip
    scene.ask(one[1], "ok", client="OpenAI/JS 7.15.0")
    assert scene.next_of(a) == TALK[1]
    assert scene.next_of(b) == "b goes on"


def test_the_openai_sdk_by_hand() -> None:
    """A script appends what it got, `content: null` and empty lists included."""
    scene = Scene()
    answer = {**calls("add", arguments='{"a": 1, "b": 2}'), "content": None, "refusal": None, "annotations": []}
    first = scene.ask([user("1+2?")], answer)
    second = scene.ask([user("1+2?"), answer, result("3")], {**says("3"), "refusal": None})
    scene.ask([user("1+2?"), answer, result("3"), says("3"), user("wrong, it is 4")], "no")
    assert scene.next_of(first) == "add: 3"
    assert scene.next_of(second) == "wrong, it is 4"


def test_anthropic_messages_as_they_are() -> None:
    """Claude Code's shape: blocks, reminders beside results, the session in metadata.user_id."""
    scene = Scene()
    named, fields = named_session({}, {"metadata": {"user_id": "user_1f_account__session_0af5e1d2-77aa"}})
    more = {"named_session": named, "session_fields": fields}
    reminder = {"type": "text", "text": "<system-reminder>\nToday is Sunday.\n</system-reminder>"}
    ask = {"role": "user", "content": [reminder, {"type": "text", "text": "list the files"}]}
    first = scene.ask([system("You are a coder."), ask], calls("Bash", text="I look.", arguments='{"command":"ls"}'),
                      **more)  # fmt: skip
    blocks = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
        ],
    }
    outcome = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}, reminder],
    }
    second = scene.ask([system("You are a coder."), ask, blocks, outcome], "There is a.txt.", **more)
    plain = {"role": "user", "content": "list the files"}  # the reminder is gone from the history
    third = scene.ask([plain, blocks, {"role": "user", "content": [outcome["content"][0]]},
                       {"role": "assistant", "content": [{"type": "text", "text": "There is a.txt."}]},
                       user("open it")], "ok", **more)  # fmt: skip
    assert scene.next_of(first) == "Bash: a.txt"
    assert scene.next_of(second) == "open it"
    assert scene.turn(third).session_id == "0af5e1d2-77aa"


def test_opencode_title_then_talk_then_compaction() -> None:
    scene = Scene()
    more = {"named_session": "ses_1", "client": "opencode/1.4"}
    title = scene.ask(
        [system("You are a title generator. You output ONLY a thread title."),
         user("Generate a title for this conversation:\n"), user("fix the test")], "Fixing a test", **more)  # fmt: skip
    first = scene.ask([system("You are opencode"), user("fix the test")], calls("bash", text="Let me run it."), **more)
    talk = [system("You are opencode"), user("fix the test"), calls("bash", text="Let me run it."), result("1 failed")]
    second = scene.ask(talk, "One test fails because of the clock; I would pass the clock in instead.", **more)
    summary = scene.ask(
        [*talk, says("One test fails because of the clock; I would pass the clock in instead."),
         user("Provide a detailed prompt for continuing our conversation above.")], "We fixed …", **more)  # fmt: skip
    after = scene.ask(
        [system("You are opencode"), user("What did we do so far?"), says("We fixed …"), user("do it")], "done", **more
    )
    scene.wait(3)
    assert scene.turn(title).kind == scene.turn(summary).kind == "side"
    assert scene.turn(first).kind == "main"
    assert scene.next_of(first) == "bash: 1 failed"
    assert scene.next_of(second) is None  # a summariser's order is nobody's next state
    assert scene.turn(after).session_id == "ses_1"
