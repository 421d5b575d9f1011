"""The plain text form of actions."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import TaskError
from serve.environments.tool_call.answers import first_answer_line
from serve.environments.tool_call.plain import expert_action, parse_plain, plain_text

RUN = "```python\nprint(1)\n```"
LOOK = '```json\n{"name": "look", "arguments": {"a": 1}}\n```'


def test_each_kind_is_read():
    assert parse_plain(f"I compute.\n{RUN}\n").calls == (Call(name="python", arguments={"code": "print(1)"}),)
    assert parse_plain(LOOK).calls == (Call(name="look", arguments={"a": 1}),)
    assert parse_plain("So.\nAnswer: 42").calls == (Call(name="answer", arguments={"value": "42"}),)
    assert parse_plain("It is \\boxed{42}.").calls == (Call(name="answer", arguments={"value": "42"}),)
    assert len(parse_plain(f"{LOOK}\nand\n{LOOK}").calls) == 2


def test_the_words_around_are_kept():
    assert parse_plain(f"I compute.\n{RUN}").text.startswith("I compute.")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("```python\nprint(1)", "line 1 opens a block that is never closed"),
        ("so\n\n```python\n\n```", "line 3 is empty"),
        (f"{RUN}\n{LOOK}", "another kind"), (f"{RUN}\nAnswer: 1", "both a call and a final answer"),
        ("```\nprint(1)\n```", "without a kind"), ("x\n```bash\nls\n```", "line 2 opens a block of kind 'bash'"),
        ('```json\n{"name": "look", "arguments": {"a": 1}\n```', "is not JSON"),
        ("```json\n[1]\n```", "name and arguments only"),
        ('```json\n{"name": "look", "arguments": [1]}\n```', "arguments an object"),
        ('```json\n{"name": "look", "name": "b", "arguments": {}}\n```', "twice"),
        ("I think it is 42.", "neither a call nor a final answer"), ("", "neither"), ("Answer: 1\nAnswer: 2", "differ"),
        ("Answer:", "empty"),
    ],
)  # fmt: skip
def test_a_fault_names_the_place_and_shows_the_right_form(text, what):
    action = parse_plain(text)
    assert action.calls == () and what in action.fault
    assert "```" in action.fault or "Answer: " in action.fault or "put either" in action.fault


def test_code_may_hold_fences_when_its_own_is_longer():
    code = "x = '''\n```\n'''"
    action = Action(text="", calls=(Call(name="python", arguments={"code": code}),))
    assert parse_plain(plain_text(action)).calls == action.calls


PIECES = [*"`\n {}\"':,aAn[]\\#*", "```python\n", "```json\n", "\n```\n", "Answer:", "\\boxed{"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_no_text_makes_the_reading_raise(text):
    action = parse_plain(text)
    assert bool(action.calls) != (action.fault is not None)


@given(st.text())
def test_no_unicode_makes_the_reading_raise(text):
    parse_plain(text)


plain = st.text(st.characters(exclude_characters="`", exclude_categories=["Cs"]), max_size=60).filter(
    lambda text: first_answer_line(text) is None and "boxed" not in text
)
names = st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True).filter(lambda name: name not in ("python", "answer"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
codes = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
python_calls = st.builds(lambda code: Call(name="python", arguments={"code": code}), codes)
json_calls = st.builds(
    lambda name, arguments: Call(name=name, arguments=arguments), names, st.dictionaries(names, values, max_size=3)
)
answers = plain.map(str.strip).filter(bool).map(lambda text: (Call(name="answer", arguments={"value": text}),))
calls = st.lists(python_calls, min_size=1, max_size=3).map(tuple) | st.lists(json_calls, min_size=1, max_size=3).map(
    tuple
)


@given(plain, calls | answers)
def test_written_and_read_again_the_calls_are_the_same(text, made):
    action = parse_plain(plain_text(Action(text=text, calls=made)))
    assert action.fault is None and action.calls == made


def test_expert_entries_become_actions():
    seen = Observation(text="")
    assert expert_action({"python": "1"}, seen).calls == (Call(name="python", arguments={"code": "1"}),)
    assert expert_action({"answer": [1]}, seen).calls == (Call(name="answer", arguments={"value": [1]}),)
    two = expert_action([{"call": "a"}, {"call": "b", "arguments": {"x": 1}}], seen).calls
    assert [(one.name, one.arguments) for one in two] == [("a", {}), ("b", {"x": 1})]
    with pytest.raises(TaskError, match="is needed"):
        expert_action({"bash": "ls"}, seen)


@pytest.mark.parametrize("entry", [5, None, {"python": 5}, {"call": 5}, {"call": "f", "arguments": 5}, [5], {}])
def test_an_entry_that_is_no_action_is_a_task_error(entry):
    with pytest.raises(TaskError, match=r"expert or wrong: .* is needed"):
        expert_action(entry, Observation(text=""))


@pytest.mark.parametrize("text", ["```" + "a" * 50_000 + "`", "```" + " " * 50_000 + "`", "```python\nx\n```\n" * 5000])
def test_no_text_takes_long_to_read(text):
    started = time.perf_counter()
    parse_plain(text)
    assert time.perf_counter() - started < 1
