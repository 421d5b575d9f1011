"""Declared functions: what is wrong with them, and with the arguments of a call."""

import pytest

from serve.environments.tasks import TaskError
from serve.environments.tool_call.functions import argument_faults, nearest, read_functions, too_deep
from tests.unit.serve.environments.tool_call.building import BOOK, fail

SCHEMA = BOOK["parameters"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "no name"}, r"functions\.0\.name: 'no name'"), ({"name": "python"}, "tool that every task"),
        ({"code": "def book(room:"}, r"functions\.book\.code: does not compile: line 1"),
        ({"code": "x = 1"}, "def book"),
        ({"code": "def other(room, people=1): pass"}, "does not define 'book'"), ({"code": " "}, "a text is needed"),
        ({"code": "class A:\n def book(self, room, people=1): pass"}, "top level"),
        ({"description": ""}, "description"),
        ({"parameters": {"type": "object", "properties": {"room": {"type": "strnig"}}}}, r"\.properties\.room"),
        ({"parameters": {"type": "array"}}, 'type = "object"'), ({"parameters": 3}, 'type = "object"'),
        ({"parameters": {"type": "object", "properties": {"rom": {}}, "required": ["rom"]}}, "'rom' is no argument"),
        ({"parameters": {"type": "object", "properties": {"room": {}}}}, "'room' has no default"),
        ({"code": "def book(room, /, people=1): pass"}, "can't be given by name"),
    ],
)  # fmt: skip
def test_a_broken_declaration_is_a_fault_of_the_task_that_names_its_field(changes, what):
    with pytest.raises(TaskError, match=what):
        read_functions([BOOK | changes], fail)


def test_a_field_too_few_or_a_name_twice_is_named():
    with pytest.raises(TaskError, match="description, parameters and code are needed; it has name"):
        read_functions([{"name": "book"}], fail)
    with pytest.raises(TaskError, match="'book' is declared 2 times"):
        read_functions([BOOK, BOOK], fail)


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        ({"room": "A"}, []), ({"room": "A", "people": 3}, []),
        ({}, ['arguments: missing room (one of "A", "B")']),
        ({"room": "C"}, ['room: is "C", expected one of "A", "B"']),
        ({"room": "A", "people": "3"}, ['people: is "3", expected type integer']),
        ({"room": "A", "people": 0}, ["people: is 0, expected minimum 1"]),
        ({"room": "A", "peeple": 1}, ["arguments: book takes no 'peeple'; known are people, room"]),
    ],
)  # fmt: skip
def test_a_schema_fault_names_path_value_and_what_was_expected(arguments, faults):
    (function,) = read_functions([BOOK], fail)
    assert argument_faults(function, arguments) == faults


def test_a_nested_path_is_named():
    schema = {
        "type": "object",
        "properties": {
            "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        },
    }
    code = "def put(rows=()):\n    return len(rows)"
    (function,) = read_functions([{"name": "put", "description": "d", "parameters": schema, "code": code}], fail)
    assert argument_faults(function, {"rows": [{"n": 1}, {"n": "x"}]}) == ['rows[1].n: is "x", expected type integer']
    many = argument_faults(function, {"rows": [{"n": "x"}] * 9})
    assert len(many) == 4 and many[-1] == "and 6 more"


def test_no_schema_is_fetched_from_anywhere():
    schema = {"type": "object", "properties": {"room": {"$ref": "http://127.0.0.1:9/schema"}}, "required": ["room"]}
    (function,) = read_functions([BOOK | {"parameters": schema, "code": "def book(room): pass"}], fail)
    with pytest.raises(Exception, match="Unresolvable"):
        argument_faults(function, {"room": "A"})


def test_the_nearest_name_comes_first():
    assert nearest("list_event", ["add_event", "list_events"]) == "known are list_events, add_event"
    assert nearest("x", []) == "there is none"


def test_depth_is_bounded():
    value = []
    for _ in range(1000):
        value = [value]
    assert too_deep({"a": value}) and not too_deep({"a": [[[1]]]})
