"""The plain-text format, the function declarations, and experts through both."""

import pytest

from serve.environments import gui
from serve.environments.gui.actions import ACTIONS
from serve.environments.gui.plain import FORMS
from serve.environments.protocol import Action, Call, Observation
from serve.environments.tasks import TaskError

CALLS = [
    Call(name="click", arguments={"element": "e12"}),
    Call(name="double_click", arguments={"element": "e1"}),
    Call(name="type", arguments={"element": "e7", "text": 'say "hi" \\ é\nand more'}),
    Call(name="type", arguments={"element": "e7", "text": "x", "clear": False}),
    Call(name="type", arguments={"element": "e7", "text": ""}),
    Call(name="key", arguments={"key": "Control+A"}),
    Call(name="key", arguments={"key": "Enter", "element": "e3"}),
    Call(name="scroll", arguments={"direction": "down"}),
    Call(name="scroll", arguments={"direction": "up", "element": "e4"}),
    Call(name="select", arguments={"element": "e5", "option": "Light blue"}),
    Call(name="select", arguments={"element": "e5", "option": ["A", 'B "b"']}),
    Call(name="drag", arguments={"from": "e1", "to": "e2"}),
    Call(name="hover", arguments={"element": "e3"}),
    Call(name="back", arguments={}),
    Call(name="wait", arguments={"seconds": 0.5}),
    Call(name="wait", arguments={}),
    Call(name="done", arguments={}),
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("thought", ["", "First I look.\nThen I act."])
def test_what_is_written_is_read_again(call: Call, thought: str) -> None:
    action = Action(text=thought, calls=(call,))
    assert gui.parse_plain(gui.plain_text(action)) == action


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ("I will click Save.\n\n```\nclick [e12]\n```", CALLS[0]),
        ("Action: click 12", CALLS[0]),
        ("`Click e12`", CALLS[0]),
        ("drag e1 to e2", CALLS[11]),
        ("select e5 Light blue", CALLS[9]),
        ("type e7 Light blue", Call(name="type", arguments={"element": "e7", "text": "Light blue"})),
        ("done.", CALLS[16]),
    ],
)
def test_common_spellings_are_read(answer: str, call: Call) -> None:
    assert gui.parse_plain(answer).calls == (call,)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", "the answer is empty"),
        ("I am not sure.", "the last line is no action"),
        ("click the button", "The right form is: click e12"),
        ("type e7", 'The right form is: type e4 "text"'),
        ("drag e1", "The right form is: drag e3 e9"),
        ("click e1\nclick e2", "several actions"),
        ("done with it", "The right form is: done"),
    ],
)
def test_a_fault_names_what_was_wrong_and_the_right_form(answer: str, fault: str) -> None:
    action = gui.parse_plain(answer)
    assert action.calls == () and action.fault is not None and fault in action.fault


def test_only_one_call_can_be_written_plainly() -> None:
    with pytest.raises(ValueError, match="one action an answer, not 2"):
        gui.plain_text(Action(text="", calls=(CALLS[0], CALLS[1])))


def test_tools_prompt_and_forms_name_the_same_actions() -> None:
    names = [tool["function"]["name"] for tool in gui.TOOLS]
    assert names == list(ACTIONS) == list(FORMS)
    for tool in gui.TOOLS:
        parameters = tool["function"]["parameters"]
        takes = ACTIONS[tool["function"]["name"]][0]
        assert set(parameters["properties"]) == set(takes)
        assert parameters["required"] == [key for key, (_, needed) in takes.items() if needed]
        assert f"\n{tool['function']['name']}" in gui.SYSTEM_PLAIN


def test_an_expert_entry_is_looked_up_by_role_and_name() -> None:
    elements = {"e1": {"role": "radio", "name": "No"}, "e4": {"role": "radio", "name": "No"}}
    seen = Observation(text="", facts={"elements": elements})
    action = gui.expert_action({"do": "click", "role": "radio", "name": "No", "nth": 1}, seen)
    assert action.calls == (Call(name="click", arguments={"element": "e4"}),)
    entry = {"do": "drag", "role": "radio", "name": "No", "to": {"role": "radio", "name": "No", "nth": 1}}
    assert gui.expert_action(entry, seen).calls[0].arguments == {"from": "e1", "to": "e4"}
    with pytest.raises(TaskError, match="the page shows no"):
        gui.expert_action({"do": "click", "role": "button", "name": "No"}, seen)
