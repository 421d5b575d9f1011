"""Declared functions: what is wrong with them, and with the arguments of a call."""

import pytest

from serve.environments.protocol import EnvironmentFailed
from serve.environments.tasks import TaskError
from serve.environments.tool_call.functions import Function, argument_faults, nearest, read_functions, too_deep
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


def of_room(room, **more):
    return {"type": "object", "properties": {"room": room}, "required": ["room"]} | more


ONE_ROOM = BOOK | {"code": "def book(room): pass"}


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (of_room({"$ref": "http://127.0.0.1:9/schema"}), r"properties\.room\.\$ref: .*nothing is fetched"),
        (of_room({"$ref": "other.json"}), "nothing is fetched"),
        (of_room({"$ref": "#anchor"}), "same schema is needed"),
        (of_room({"$ref": "#/$defs/none"}), "has no such part"), (of_room({"$ref": "#/required"}), "is no schema"),
        (of_room({"$ref": "#/default", "x": 1}, default={"properties": 5}), "no JSON Schema"),
        (of_room({"allOf": [{"$ref": "#/properties/room"}]}), "leads back to itself"),
        (of_room({"$ref": "#/properties/room"}), "leads back to itself"),
        (of_room({}, allOf=[{"$ref": "#"}]), "itself"),
        (of_room({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}),
         "leads back to itself"),
        (of_room({"$id": "http://x/", "$ref": "#/y"}), r"\$id is not supported"),
        (of_room({"$dynamicRef": "#"}), r"\$dynamicRef is not supported"),
        (of_room({"pattern": "("}), r"room\.pattern: no JSON Schema"),
        (of_room({"patternProperties": {"(": {}}}), "no JSON Schema|no regular expression"),
        (of_room({"properties": {"a": {"$ref": "#/$defs/y"}}, "allOf": [{"$ref": "#/$defs/y"}]},
                 **{"$defs": {"y": {"allOf": [{"$ref": "#/properties/room"}]}}}), "leads back to itself"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_elsewhere_or_in_a_circle_is_a_fault_of_the_task(schema, what):
    with pytest.raises(TaskError, match=what):
        read_functions([ONE_ROOM | {"parameters": schema}], fail)


def test_references_within_the_schema_and_trees_are_fine():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/a~1b"}, "name": {"type": "string"}}}
    schema = of_room({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": tree}})
    (function,) = read_functions([ONE_ROOM | {"parameters": schema}], fail)
    assert argument_faults(function, {"room": {"left": {"left": {"name": "x"}}}}) == []
    assert "room.left.name: is 1" in argument_faults(function, {"room": {"left": {"name": 1}}})[0]


@pytest.mark.parametrize("room", [{"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#/properties/room"}, {"type": "strnig"}])
def test_a_schema_that_fails_at_a_call_all_the_same_is_a_failure_of_the_environment(room):
    function = Function(name="book", description="d", parameters=of_room(room), code="def book(room): pass")
    with pytest.raises(EnvironmentFailed, match=r"functions\.book\.parameters: the schema can't be used"):
        argument_faults(function, {"room": "A"})


def test_what_the_policy_made_up_is_cut():
    (function,) = read_functions([BOOK], fail)
    faults = argument_faults(function, {"room": "A"} | {f"{number:0200}": 1 for number in range(1000)})
    assert "and 995 more" in faults[0] and len(faults[0]) < 1000
    assert len(argument_faults(function, {"room": "B" * 10**6})[0]) < 300
    assert len(nearest("x" * 10**6, ["book"])) < 100
    many = read_functions([ONE_ROOM | {"parameters": of_room({"type": "array", "items": {"type": "string"}})}], fail)[0]
    assert argument_faults(many, {"room": [1] * 100_000})[-1] == "and more than 97 others"


def test_source_nested_without_end_is_a_fault_of_the_task():
    with pytest.raises(TaskError, match=r"functions\.book\.code: does not compile: it is nested too deeply"):
        read_functions([BOOK | {"code": "def book(room): return " + "-" * 100_000 + "1"}], fail)


def test_the_nearest_name_comes_first():
    assert nearest("list_event", ["add_event", "list_events"]) == "known are list_events, add_event"
    assert nearest("x", []) == "there is none"


def test_depth_is_bounded():
    value = []
    for _ in range(1000):
        value = [value]
    assert too_deep({"a": value}) and not too_deep({"a": [[[1]]]})
