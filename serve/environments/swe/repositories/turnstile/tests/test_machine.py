import pytest
from turnstile import Machine, NoTransition


@pytest.fixture
def door() -> Machine:
    door = Machine("closed")
    door.add("open", "closed", "opened")
    door.add("close", "opened", "closed")
    door.add("break", "*", "broken")
    return door


def test_transitions(door: Machine) -> None:
    assert door.fire("open") == "opened"
    assert door.fire("close") == "closed"


def test_no_transition(door: Machine) -> None:
    with pytest.raises(NoTransition):
        door.fire("close")
    assert door.state == "closed"


def test_any_state(door: Machine) -> None:
    door.fire("open")
    assert door.fire("break") == "broken"


def test_guards() -> None:
    gate = Machine("locked")
    gate.add("coin", "locked", "open", guard=lambda amount: amount >= 2)
    assert not gate.can("coin", 1)
    assert gate.fire("coin", 2) == "open"


def test_listeners_hear_the_change(door: Machine) -> None:
    heard: list[object] = []
    door.on("leave:closed", lambda: heard.append("leave"))
    door.on("enter:opened", lambda: heard.append("enter"))
    door.on("changed", lambda before, after: heard.append((before, after)))
    door.fire("open")
    assert heard == ["leave", "enter", ("closed", "opened")]


def test_history(door: Machine) -> None:
    door.fire("open")
    door.fire("close")
    assert door.history == ["closed", "opened", "closed"]


def test_events(door: Machine) -> None:
    assert door.events == ["open", "break"]
