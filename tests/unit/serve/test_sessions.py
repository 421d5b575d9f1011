"""The tracker, rule by rule."""

from typing import Any

import pytest

from serve import sessions
from serve.sessions import Tracker, TrackerSettings
from storage.records import Disposition, NextState, Turn
from tests.unit.serve.session_builders import START, Scene, calls, result, says, system, user

LONG = "a long answer that has quite enough words to be known again after a history was rewritten by its client"


def two_turns(scene: Scene, **more: object) -> tuple[str, str]:
    first = scene.ask([user("hi")], "hello", **more)
    second = scene.ask([user("hi"), says("hello"), user("more")], "ok", **more)
    return first, second


# ---------------------------------------------------------------------- anchors


def test_without_any_id_an_answer_is_found_again() -> None:
    scene = Scene()
    first, second = two_turns(scene)
    assert scene.turn(first).relation == "first"
    assert scene.turn(second).relation == "follow"
    assert scene.turn(second).parent_id == first
    assert scene.turn(second).session_id == scene.turn(first).session_id
    assert scene.next_of(first) == "more"
    assert scene.turn(first).kind == scene.turn(second).kind == "main"


def test_a_named_session_keeps_the_clients_own_id() -> None:
    scene = Scene()
    first, second = two_turns(scene, named_session="mine")
    assert scene.turn(first).session_id == scene.turn(second).session_id == "mine"
    assert scene.next_of(first) == "more"


def test_an_id_narrows_the_search() -> None:
    scene = Scene()
    one = scene.ask([user("hi")], "hello", named_session="one")
    two = scene.ask([user("hi")], "hello", named_session="two")
    scene.ask([user("hi"), says("hello"), user("for one")], "ok", named_session="one")
    scene.ask([user("hi"), says("hello"), user("for two")], "ok", named_session="two")
    assert scene.next_of(one) == "for one"
    assert scene.next_of(two) == "for two"


def test_tenants_never_meet() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello", tenant="a", named_session="s")
    other = scene.ask([user("hi"), says("hello"), user("more")], "ok", tenant="b", named_session="s")
    scene.wait(3)
    assert scene.next_of(first) is None
    assert scene.turn(other).parent_id is None


def test_equal_candidates_prefer_the_client_then_the_open_one_then_the_newest() -> None:
    scene = Scene(TrackerSettings(retry_s=1))
    mine = scene.ask([user("hi")], "hello", client="mine")
    theirs = scene.ask([user("hi")], "hello", client="theirs")
    scene.ask([user("hi"), says("hello"), user("I am mine")], "ok", client="mine")
    assert scene.next_of(mine) == "I am mine" and scene.next_of(theirs) is None

    old = scene.ask([user("hey")], "hello")
    new = scene.ask([user("hey")], "hello")
    guess = scene.ask([user("hey"), says("hello"), user("first")], "ok")
    assert scene.next_of(new) == "first" and scene.turn(guess).ambiguous
    sure = scene.ask([user("hey"), says("hello"), user("second")], "ok")
    assert scene.next_of(old) == "second" and not scene.turn(sure).ambiguous


def test_a_changed_system_prompt_and_thinking_do_not_hide_an_answer() -> None:
    scene = Scene()
    first = scene.ask([system("It is 10:00"), user("hi")], {**says("hello"), "reasoning": "hm"})
    scene.ask([system("It is 10:01"), user("hi"), says("hello\n"), user("more")], "ok")
    assert scene.next_of(first) == "more"


def test_an_edited_answer_is_not_ours() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    second = scene.ask([user("hi"), says("hello"), user("more")], "ok")
    third = scene.ask([user("hi"), says("hello"), user("more"), says("edited"), user("well")], "fine")
    scene.wait(3)
    assert scene.next_of(second) is None
    assert scene.turn(third).parent_id == first  # the newest answer of ours that is left


def test_another_models_answer_in_between() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    third = scene.ask([user("hi"), says("hello"), user("more"), says("of another"), user("well")], "fine")
    scene.wait(3)
    assert scene.turn(third).parent_id == first
    assert scene.next_of(first) == "more"


def test_an_answer_in_two_messages_and_messages_in_one() -> None:
    scene = Scene()
    first = scene.ask([user("look"), user("here")], calls("ls", text="I look."))
    second = scene.ask(
        [user("look\nhere"), says("I look."), calls("ls"), result("a.txt")],
        "one file",
    )
    assert scene.turn(second).parent_id == first
    assert scene.next_of(first) == "ls: a.txt"


# ---------------------------------------------------------------------- retries, siblings, regeneration


def test_a_retry_is_a_sibling_and_no_next_state() -> None:
    scene = Scene()
    first, second = two_turns(scene)
    again = scene.ask([user("hi"), says("hello"), user("more")], "ok then")
    assert scene.turn(again).relation == "retry"
    assert scene.turn(again).parent_id == scene.turn(second).parent_id == first
    assert sum(isinstance(r, NextState) for r in scene.made) == 1


def test_a_retried_first_request_stays_in_its_session() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], None, finish_reason="error", error="engine restarting")
    again = scene.ask([user("hi")], "hello")
    assert scene.turn(again).relation == "retry"
    assert scene.turn(again).session_id == scene.turn(first).session_id
    assert scene.ended(first) == ["error"]


def test_the_same_first_words_much_later_are_a_new_session() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    later = scene.ask([user("hi")], "hello", after=3600)
    assert scene.turn(later).relation == "first"
    assert scene.turn(later).session_id != scene.turn(first).session_id


def test_the_same_talk_begun_anew_is_learned_from_anew() -> None:
    """A script at temperature 0, run twice without an id: equal requests, equal answers."""
    scene = Scene()
    first, second = two_turns(scene)
    third, fourth = two_turns(scene)
    assert [scene.turn(e).relation for e in (first, second, third, fourth)] == ["first", "follow", "first", "follow"]
    assert scene.next_of(first) == scene.next_of(third) == "more"
    assert scene.turn(third).session_id == scene.turn(fourth).session_id != scene.turn(first).session_id


def test_only_the_answer_that_was_kept_gets_the_next_state() -> None:
    scene = Scene()
    dropped = scene.ask([user("hi")], "hello")
    kept = scene.ask([user("hi")], "good day")
    scene.ask([user("hi"), says("good day"), user("more")], "ok")
    scene.wait(7 * 3600)
    assert scene.next_of(kept) == "more" and scene.next_of(dropped) is None
    assert scene.ended(dropped) == ["not kept"] and scene.ended(kept) == []


def test_an_edited_question_is_a_branch_without_next_state() -> None:
    scene = Scene()
    first, _ = two_turns(scene)
    edited = scene.ask([user("hi"), says("hello"), user("something else")], "ok")
    assert scene.turn(edited).relation == "branch" and scene.turn(edited).parent_id == first
    assert scene.next_of(first) == "more"


def test_a_refused_request_still_carries_the_next_state() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    request = [user("hi"), says("hello"), user("more")]
    refused = scene.ask(request, None, finish_reason="refused", error="the prompt has 9000 tokens, the window 8192")
    again = scene.ask(request, "ok")
    assert scene.next_of(first) == "more"
    assert scene.ended(refused) == ["refused"]
    assert scene.turn(again).relation == "retry" and scene.turn(again).parent_id == first


# ---------------------------------------------------------------------- tools


def test_a_tool_loop() -> None:
    scene = Scene()
    history = [user("list")]
    ids = []
    for step in range(3):
        ids.append(scene.ask(history, calls("ls", arguments=f'{{"n": {step}}}')))
        history = [*history, calls("ls", arguments=f'{{"n":{step}.0}}'), result(f"file {step}")]
    last = scene.ask(history, "three files")
    for step, exchange_id in enumerate(ids):
        assert scene.next_of(exchange_id) == f"ls: file {step}"
        assert scene.role_of(exchange_id) == "tool"
    assert scene.turn(last).why_kind.startswith("it goes on after a tool's result")


def test_parallel_results_are_one() -> None:
    scene = Scene()
    first = scene.ask([user("list")], calls("ls", "pwd"))
    scene.ask([user("list"), calls("ls", "pwd"), result("a", 0), result("/", 1)], "done")
    assert scene.next_of(first) == "ls: a\n\npwd: /"


# ---------------------------------------------------------------------- compaction, sub-agents, overtaking


def test_compaction_opens_a_branch_joined_by_an_answer_that_was_kept() -> None:
    scene = Scene()
    history = [user("one")]
    for word in ("two", "three"):
        scene.ask(history, f"{LONG} {len(history)}", named_session="s")
        history = [*history, says(f"{LONG} {len(history)}"), user(word)]
    last = scene.ask(history, LONG, named_session="s")
    summary = user("The user counted to two. [an unknown kind of summary]")
    compacted = scene.ask([summary, user("three"), says(LONG), user("four")], "ok", named_session="s")
    scene.wait(3)
    assert scene.turn(compacted).relation == "branch" and scene.turn(compacted).parent_id == last
    assert scene.next_of(last) == "four"
    assert not any("summary" in r.content for r in scene.made if isinstance(r, NextState))
    assert "compacted" in scene.turn(compacted).why_kind


def test_short_answers_do_not_join_rewritten_histories() -> None:
    scene = Scene()
    scene.ask([user("one"), says("foreign"), user("two")], "ok", tokens=3)
    scene.wait(3)
    other = scene.ask([user("summary"), user("two"), says("ok"), user("three")], "ok")
    scene.wait(3)
    assert scene.turn(other).parent_id is None


def test_a_compacted_history_without_answers_is_a_branch_of_its_session() -> None:
    scene = Scene()
    _, second = two_turns(scene, named_session="s")
    compacted = scene.ask([user("This session is being continued from a previous conversation: …"), user("on")], "ok",
                          named_session="s")  # fmt: skip
    assert scene.turn(compacted).relation == "branch" and scene.turn(compacted).parent_id is None
    assert scene.next_of(second) is None
    follow = scene.ask(
        [user("This session is being continued from a previous conversation: …"), user("on"), says("ok"), user("5")],
        "ok", named_session="s",
    )  # fmt: skip
    assert scene.next_of(compacted) == "5" and scene.turn(follow).parent_id == compacted


def test_a_sub_agent_is_a_branch_of_its_own() -> None:
    scene = Scene()
    main = scene.ask([system("main"), user("research tides")], calls("delegate"), named_session="s")
    sub = scene.ask([system("sub"), user("find tide tables")], calls("search"), named_session="s")
    subs = [system("sub"), user("find tide tables"), calls("search"), result("found")]
    scene.ask(subs, "the tables say …", named_session="s")
    scene.ask([system("main"), user("research tides"), calls("delegate"), result("tables")], "done", named_session="s")
    assert scene.turn(sub).relation == "branch" and scene.turn(sub).parent_id is None
    assert scene.turn(sub).session_id == "s" and scene.turn(sub).kind == "main"
    assert scene.next_of(sub) == "search: found"
    assert scene.next_of(main) == "delegate: tables"


@pytest.mark.parametrize("named", [None, "s"])
def test_a_request_may_overtake_its_predecessor(named: str | None) -> None:
    scene = Scene()
    one, two = [user("hi")], [user("hi"), says("hello"), user("more")]
    three = [*two, says("ok"), user("again")]
    last = scene.ask(three, "yes", named_session=named, exchange_id="C", after=0)
    middle = scene.ask(two, "ok", named_session=named, exchange_id="B", after=0.5)
    assert scene.made == []
    first = scene.ask(one, "hello", named_session=named, exchange_id="A", after=0.5)
    assert [r.exchange_id for r in scene.made if isinstance(r, Turn)] == ["A", "B", "C"]
    assert scene.turn(last).parent_id == middle and scene.turn(middle).parent_id == first
    assert scene.next_of(first) == "more" and scene.next_of(middle) == "again"
    assert len({scene.turn(e).session_id for e in (first, middle, last)}) == 1


def test_after_two_seconds_it_counts_as_new() -> None:
    scene = Scene()
    late = scene.ask([user("hi"), says("hello"), user("more")], "ok")
    scene.wait(1.9)
    assert scene.made == []
    scene.wait(0.2)
    assert scene.turn(late).relation == "first"


def test_a_client_that_begins_to_name_its_session() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    scene.ask([user("hi"), says("hello"), user("more")], "ok", named_session="now")
    scene.wait(3)
    assert scene.next_of(first) == "more"


# ---------------------------------------------------------------------- endings


def test_idle_turns_are_sealed_untrained_and_what_comes_later_is_too_old() -> None:
    scene = Scene(TrackerSettings(idle_s=60))
    first = scene.ask([user("hi")], "hello")
    scene.wait(61)
    assert scene.ended(first) == ["no next state"]
    late = scene.ask([user("hi"), says("hello"), user("more")], "ok")
    assert scene.turn(late).parent_id == first
    assert scene.next_of(first) is None
    assert scene.ended(first) == ["no next state", "too old"]
    scene.ask([user("hi"), says("hello"), user("other")], "ok")
    assert scene.ended(first) == ["no next state", "too old"]


def test_a_session_ends_when_told() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello", named_session="s")
    scene.hear(scene.tracker.session_done("t", "s", scene.now))
    assert scene.ended(first) == ["no next state"]
    second = scene.ask([user("bye")], "bye", named_session="s", session_done=True)
    assert scene.ended(second) == ["no next state"]
    assert scene.tracker.snapshot()["open_sessions"] == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"answer": "par", "finish_reason": "abort"}, "aborted"),
        ({"answer": "cut", "finish_reason": "length"}, "cut by length"),
        ({"answer": ""}, "empty answer"),
        ({"answer": "<think>hm"}, "empty answer"),
        ({"answer": None, "finish_reason": "error"}, "error"),
        ({"answer": "x", "turn_type": "side"}, "side"),
    ],
)
def test_turns_that_end_at_once(more: dict, reason: str) -> None:
    scene = Scene()
    exchange_id = scene.ask([user("hi")], more.pop("answer"), **more)
    assert scene.ended(exchange_id) == [reason]
    scene.wait(10 * 3600)
    assert scene.ended(exchange_id) == [reason]


def test_truncated_answers_train_by_setting() -> None:
    scene = Scene(train_cut_answers=True)
    first = scene.ask([user("hi")], "hello", finish_reason="length")
    scene.ask([user("hi"), says("hello"), user("go on")], "ok")
    assert scene.ended(first) == [] and scene.next_of(first) == "go on"


def test_an_aborted_answer_that_the_client_kept_in_part_is_an_anchor() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello, this is a long", finish_reason="abort", named_session=None)
    second = scene.ask([user("hi"), says("hello, this is"), user("stop!")], "ok")
    assert scene.turn(second).parent_id == first
    assert scene.turn(second).session_id == scene.turn(first).session_id
    assert scene.next_of(first) is None and scene.ended(first) == ["aborted"]


def test_feedback_is_a_next_state() -> None:
    scene = Scene()
    _, second = two_turns(scene)
    thumb = NextState(next_state_id="F", exchange_id=second, role="feedback", content="good", source_exchange_id=None,
                      arrived_at=scene.now, score=1.0)  # fmt: skip
    assert scene.tracker.feedback(thumb, scene.now) == [thumb]
    scene.wait(10 * 3600)
    assert scene.ended(second) == []
    assert scene.tracker.feedback(thumb, scene.now) == [thumb]


def test_feedback_may_come_before_its_exchange_and_too_late() -> None:
    scene = Scene(TrackerSettings(idle_s=60))
    thumb = NextState(next_state_id="F", exchange_id="E1", role="feedback", content="good", source_exchange_id=None,
                      arrived_at=START, score=1.0)  # fmt: skip
    assert scene.tracker.feedback(thumb, scene.now) == []
    scene.ask([user("hi")], "hello")
    assert thumb in scene.made
    other = scene.ask([user("hey")], "hello")
    scene.wait(61)
    scene.hear(scene.tracker.feedback(
        NextState(next_state_id="G", exchange_id=other, role="feedback", content="bad", source_exchange_id=None,
                  arrived_at=scene.now, score=-1.0), scene.now))  # fmt: skip
    assert scene.ended(other) == ["no next state", "too old"]


def test_the_oldest_turns_are_forgotten() -> None:
    scene = Scene(TrackerSettings(max_turns=3))
    first = scene.ask([user("0")], "0")
    for n in range(1, 5):
        scene.ask([user(str(n))], str(n))
    scene.wait(0)
    assert scene.ended(first) == ["no next state"]
    assert scene.tracker.snapshot()["remembered_turns"] == 3
    assert scene.tracker.snapshot()["open_turns"] == 3


def test_an_exchange_seen_twice_counts_once() -> None:
    scene = Scene()
    scene.ask([user("hi")], "hello")
    scene.ask([user("hi")], "hello", exchange_id="E1")
    assert len(scene.made) == 1


# ---------------------------------------------------------------------- side turns


def test_a_header_wins() -> None:
    scene = Scene()
    side = scene.ask([user("hi")], "hello", turn_type="side")
    main = scene.ask([user("Generate a title for this conversation: x")], "T", turn_type="main")
    assert scene.turn(side).kind == "side" and "X-Turn-Type" in scene.turn(side).why_kind
    assert scene.turn(main).kind == "main"


def test_a_heartbeat_is_not_what_followed_and_a_silent_answer_is_seen_through() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    beat = user("Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK.")
    side = scene.ask([user("hi"), says("hello"), beat], "HEARTBEAT_OK")
    assert scene.turn(side).kind == "side" and scene.turn(side).parent_id == first
    assert scene.next_of(first) is None and scene.ended(side) == ["side"]
    after = scene.ask([user("hi"), says("hello"), beat, says("HEARTBEAT_OK"), user("thanks")], "ok")
    assert scene.next_of(first) == "thanks" and scene.turn(after).parent_id == side


def test_an_alert_was_seen_so_what_follows_answers_the_alert() -> None:
    scene = Scene()
    first = scene.ask([user("hi")], "hello")
    beat = user("Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK.")
    scene.ask([user("hi"), says("hello"), beat], "Your flight leaves in an hour!")
    scene.ask([user("hi"), says("hello"), beat, says("Your flight leaves in an hour!"), user("thanks")], "ok")
    assert scene.next_of(first) is None


def test_a_memory_flush_with_tools_stays_a_side_turn() -> None:
    scene = Scene()
    scene.ask([user("hi")], "hello")
    flush = user("Pre-compaction memory flush. Store durable memories now. If nothing to store, reply NO_REPLY.")
    history = [user("hi"), says("hello"), flush]
    one = scene.ask(history, calls("write"))
    two = scene.ask([*history, calls("write"), result("written")], "NO_REPLY")
    assert scene.turn(one).kind == scene.turn(two).kind == "side"
    scene.ask([*history, calls("write"), result("written"), says("NO_REPLY"), user("and now?")], "ok")
    assert scene.next_of(one) is None


TITLES = "Generate a concise session title (3-6 words, max 60 characters) from the user's first message."
CHAT_WINDOW = "### Task:\nGenerate a concise title\n### Guidelines:\n<chat_history>\nUSER: x\n</chat_history>"
CHECKPOINT = "The messages above are a conversation to summarize. Create a structured context checkpoint summary."
SUMMARISER = "You are a context summarization assistant. Read a conversation."
SCRATCH = "Follow the heartbeat monitor scratch context when provided. If nothing needs attention, reply NO_REPLY."


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        ([system("You are a title generator. You output ONLY a thread title."), user("fix my bug")], {}),
        ([system(TITLES), user("fix my bug")], {}),
        ([user(CHAT_WINDOW)], {}),
        ([user("Based on this conversation, generate a short 1-2 word filename slug (lowercase).\n\nx")], {}),
        ([user("Summarize this conversation:\nuser: hi\nassistant: hello")], {}),
        ([user("Write a title for this chat.")], {"sampling": {"max_tokens": 20}}),
        ([system(SUMMARISER), user("<conversation>x</conversation>")], {}),
        ([user("hi"), says("hello"), user(CHECKPOINT)], {}),
        ([system("You are answering an ephemeral /btw side question about the conversation."), user("x")], {}),
        ([user("Analyze if this message indicates a new topic: fields 'isNewTopic' and 'title'")], {}),
        ([user("[OpenClaw heartbeat poll]")], {}),
        ([user(SCRATCH)], {}),
        ([user("Check my mail. Otherwise reply with exactly HEARTBEAT_OK")], {}),
        ([user("quota")], {"sampling": {"max_tokens": 1}}),
    ],
)
def test_errands_are_side_turns_and_say_why(messages: list, more: dict) -> None:
    scene = Scene()
    exchange_id = scene.ask(messages, "x", **more)
    scene.wait(3)
    turn = scene.turn(exchange_id)
    assert turn.kind == "side", turn
    assert len(turn.why_kind) > 10 and scene.ended(exchange_id) == ["side"]


@pytest.mark.parametrize(
    "words",
    [
        "Write a title for my essay about tides",
        "Please add a line to HEARTBEAT.md that asks to check my mail",
        "Summarize this article for me: …",
        "Why did you reply with HEARTBEAT_OK?",
        "give the chat window a better title",
        "What is a memory flush?",
    ],
)
def test_people_are_main(words: str) -> None:
    scene = Scene()
    exchange_id = scene.ask([system("You are a helpful assistant."), user(words)], "x", tools=[{"type": "function"}])
    assert scene.turn(exchange_id).kind == "main", scene.turn(exchange_id)


def test_every_disposition_has_a_sentence() -> None:
    scene = Scene(TrackerSettings(idle_s=60))
    two_turns(scene)
    scene.wait(100)
    assert all(len(r.detail) > 10 for r in scene.made if isinstance(r, Disposition))


def test_a_named_session_goes_on_after_it_was_idle() -> None:
    scene = Scene(TrackerSettings(idle_s=60))
    first, second = two_turns(scene, named_session="s")
    scene.wait(61)
    third = scene.ask([user("hi"), says("hello"), user("more"), says("ok"), user("still there?")], "yes",
                      named_session="s")  # fmt: skip
    assert scene.turn(third).relation == "follow" and scene.turn(third).parent_id == second
    assert scene.ended(second) == ["no next state", "too old"] and scene.ended(first) == []


def test_a_script_may_ask_the_same_thing_very_often() -> None:
    scene = Scene()
    ids = [scene.ask([user("1+1?")], f"answer {n}", after=0.01) for n in range(2_000)]
    scene.ask([user("1+1?"), says("answer 1999"), user("right")], "ok")
    assert scene.next_of(ids[-1]) == "right"
    assert scene.tracker.snapshot()["remembered_turns"] == 2_001


def test_a_turn_that_cannot_be_read_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sessions.shape_of

    def shape_of(messages: list) -> Any:
        if "poison" in str(messages):
            raise AttributeError("'str' object has no attribute 'get'")
        return real(messages)

    monkeypatch.setattr(sessions, "shape_of", shape_of)
    scene = Scene()
    first = scene.ask([user("hi")], "hello there")
    bad = scene.ask([user("poison")], "what")
    scene.ask([user("hi"), says("hello there"), user("no, shorter")], "hey")
    assert scene.next_of(first) == "no, shorter" and scene.ended(bad) == [sessions.UNREADABLE]

    again = Tracker()
    exchanges = [event for event in scene.events if event.kind == "exchange"]
    made = again.restore(exchanges, scene.now)  # as if nothing had been said of them yet
    assert [r.content for r in made if isinstance(r, NextState)] == ["no, shorter"]
    assert [r.reason for r in made if isinstance(r, Disposition)] == [sessions.UNREADABLE]
    assert again.restore(scene.events, scene.now) == [], "said once, not again"
