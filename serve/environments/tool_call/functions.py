"""Functions that a task declares: read and checked, described, and their arguments checked before a call.

What it does: `read_functions` (schema and source must fit: a broken one is a fault of the task), `with_service`
(functions shared by several tasks, `services/<name>.toml`), `argument_faults` (against the JSON Schema, each with path,
value and what was expected), `nearest` for misspelt names.
What it leaves out: running them (`host.py`). Nothing here executes a task's source.
"""

import ast
import difflib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from serve.environments.protocol import EnvironmentFailed
from serve.environments.tasks import TaskError

SERVICES = Path(__file__).with_name("services")
RESERVED = ("python", "answer")  # tools of the track itself
MAX_DEPTH = 40  # of a call's arguments, and of each field of a task
MAX_FAULTS = 3  # shown of one call's arguments
COUNTED_FAULTS = 100  # of one call's arguments
NAME_CHARS = 80  # of a name that the policy made up
NAMES = 5  # of a list of such names
# Where a schema holds others: by name, in a list, or one; and which of them speak of the very same value.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = (
    "not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_SAME_VALUE = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
_ELSEWHERE = ("$id", "$dynamicRef", "$recursiveRef", "$schema")  # change what a $ref means
Fail = Callable[[str, str], TaskError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One declared function."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of an object
    code: str  # Python source that defines it

    def tool(self) -> dict[str, Any]:
        """Its OpenAI declaration."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}

    def signature(self) -> str:
        """`name(a: string, b: integer = optional)` for people and models that read text."""
        required = self.parameters.get("required", [])
        parts = [
            f"{name}: {_kind(schema)}" + ("" if name in required else ", optional")
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({'; '.join(parts)})"


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    kind = schema.get("type", "any")
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(one, ensure_ascii=False) for one in schema["enum"])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def compiled(source: str, mode: str, name: str, fail: Fail) -> ast.AST:
    """The source's tree.

    Raises:
        TaskError: made by `fail`, with the line within the source.
    """
    try:
        tree = ast.parse(source.strip() if mode == "eval" else source, mode=mode)
        compile(tree, name, mode)
    except (RecursionError, MemoryError) as error:
        raise fail(name, "does not compile: it is nested too deeply") from error
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno} of it: " if isinstance(error, SyntaxError) else ""
        raise fail(name, f"does not compile: {line}{getattr(error, 'msg', error)}") from error
    return tree


def read_functions(given: Any, fail: Fail) -> tuple[Function, ...]:
    """The declared functions, checked.

    Raises:
        TaskError: made by `fail`; names function and field.
    """
    if not isinstance(given, list):
        raise fail("functions", f"{given!r}: a list is needed")
    functions = [_function(number, one, fail) for number, one in enumerate(given)]
    names = [function.name for function in functions]
    for name in names:
        if names.count(name) > 1:
            raise fail("functions", f"{name!r} is declared {names.count(name)} times")
    return tuple(functions)


def _function(number: int, given: Any, fail: Fail) -> Function:
    place = f"functions.{number}"
    if not isinstance(given, dict) or set(given) != {"name", "description", "parameters", "code"}:
        has = ", ".join(sorted(given)) if isinstance(given, dict) else repr(given)
        raise fail(place, f"name, description, parameters and code are needed; it has {has}")
    name = given["name"]
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
        raise fail(f"{place}.name", f"{name!r}: a Python name of up to 64 letters, digits and '_' is needed")
    if name in RESERVED:
        raise fail(f"{place}.name", f"{name!r} is a tool that every task of the track has")
    place = f"functions.{name}"
    for field in ("description", "code"):
        if not isinstance(given[field], str) or not given[field].strip():
            raise fail(f"{place}.{field}", f"{given[field]!r}: a text is needed")
    _check_schema(given["parameters"], f"{place}.parameters", fail)
    definition = _definition(name, given["code"], place, fail)
    parameters = _closed(given["parameters"], definition)
    _check_arguments(parameters, definition, place, fail)
    return Function(name=name, description=given["description"].strip(), parameters=parameters, code=given["code"])


def _check_schema(schema: Any, place: str, fail: Fail) -> None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise fail(place, 'a JSON Schema with type = "object" is needed')
    _require_schema(schema, place, fail)
    _check_references(schema, place, fail)


def _require_schema(schema: Any, place: str, fail: Fail) -> None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = ".".join(str(step) for step in error.absolute_path)
        raise fail(f"{place}.{path}".rstrip("."), f"no JSON Schema: {error.message:.300}") from error


def _check_references(schema: dict[str, Any], place: str, fail: Fail) -> None:
    """Each $ref must lead to a part of the same schema, and none back to where the same value is looked at already."""
    paths: dict[int, str] = {}
    same: dict[int, list[int]] = {}  # of each part those that look at the very same value
    left: list[tuple[Any, str]] = [(schema, place)]
    while left:
        one, path = left.pop()
        if not isinstance(one, dict) or id(one) in paths:
            continue
        paths[id(one)] = path
        if strange := next((word for word in _ELSEWHERE if word in one and one is not schema), None):
            raise fail(path, f"{strange} is not supported here: refer to a part of the schema, like #/$defs/name")
        _check_patterns(one, path, fail)
        parts = [(f"{path}.{word}", inner) for word, inner in _subschemas(one)]
        same[id(one)] = [id(inner) for word, inner in _subschemas(one) if word.split(".")[0] in _SAME_VALUE]
        if "$ref" in one:
            parts.append((f"{path}.$ref", _target(schema, one["$ref"], f"{path}.$ref", fail)))
            same[id(one)].append(id(parts[-1][1]))
        left += [(inner, path) for path, inner in parts]
    try:
        TopologicalSorter(same).prepare()
    except CycleError as error:
        path = paths[error.args[1][0]]
        raise fail(path, "leads back to itself by $ref: a value could be looked at without end") from error


def _check_patterns(schema: dict[str, Any], path: str, fail: Fail) -> None:
    for pattern in [schema.get("pattern", ""), *schema.get("patternProperties", {})]:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise fail(path, f"the pattern {pattern!r:.100} is no regular expression: {error}") from error


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in _BY_NAME:
        yield from ((f"{word}.{name}", inner) for name, inner in schema.get(word, {}).items())
    for word in _LISTS:
        yield from ((f"{word}.{number}", inner) for number, inner in enumerate(schema.get(word, ())))
    yield from ((word, schema[word]) for word in _ONE if word in schema)


def _target(schema: dict[str, Any], reference: Any, path: str, fail: Fail) -> Any:
    """What a local $ref leads to."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        what = "a part of the same schema is needed, like #/$defs/name; nothing is fetched from elsewhere"
        raise fail(path, f"{reference!r:.100}: {what}")
    found: Any = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        inside = isinstance(found, list) and re.fullmatch("[0-9]{1,9}", step) and int(step) < len(found)
        if not inside and not (isinstance(found, dict) and step in found):
            raise fail(path, f"{reference!r:.100}: the schema has no such part")
        found = found[int(step)] if isinstance(found, list) else found[step]
    if not isinstance(found, dict | bool):
        raise fail(path, f"{reference!r:.100}: leads to a {type(found).__name__}, which is no schema")
    _require_schema(found, path, fail)  # it may be a part that is none, as a default is
    return found


def _definition(name: str, code: str, place: str, fail: Fail) -> ast.FunctionDef:
    tree = compiled(code, "exec", f"{place}.code", fail)
    assert isinstance(tree, ast.Module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise fail(f"{place}.code", f"does not define {name!r} at its top level: 'def {name}(...):' is needed")


def _closed(schema: dict[str, Any], definition: ast.FunctionDef) -> dict[str, Any]:
    if definition.args.kwarg is not None or "additionalProperties" in schema:
        return schema
    return schema | {"additionalProperties": False}


def _check_arguments(schema: dict[str, Any], definition: ast.FunctionDef, place: str, fail: Fail) -> None:
    """The function must take what the schema lets through."""
    arguments = definition.args
    if arguments.posonlyargs:
        raise fail(f"{place}.code", f"{arguments.posonlyargs[0].arg!r} can't be given by name")
    plain = [one.arg for one in arguments.args]
    needed = set(plain[: len(plain) - len(arguments.defaults)])
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needed |= {one.arg for one, default in named if default is None}
    taken = set(plain) | {one.arg for one in arguments.kwonlyargs}
    properties, required = set(schema.get("properties", {})), set(schema.get("required", []))
    if arguments.kwarg is None and (strange := sorted((properties | required) - taken)):
        raise fail(f"{place}.parameters", f"{strange[0]!r} is no argument of the function, which takes {sorted(taken)}")
    if missing := sorted(needed - required):
        raise fail(f"{place}.parameters", f"{missing[0]!r} has no default, so it must be in required")


def with_service(given: dict[str, Any], fail: Fail) -> dict[str, Any]:
    """The payload with the functions and state of its service put in, before its own.

    Raises:
        TaskError: made by `fail`: no such service.
    """
    if "service" not in given:
        return given
    name = given["service"]
    known = sorted(path.stem for path in SERVICES.glob("*.toml"))
    if name not in known:
        raise fail("service", f"{name!r:.100} is unknown; known are {', '.join(known)}")
    if not isinstance(given.get("state", ""), str):
        raise fail("state", f"{given['state']!r:.100}: Python source is needed")
    if not isinstance(given.get("functions", []), list):
        raise fail("functions", f"{given['functions']!r:.100}: a list is needed")
    state, functions = _service(name)
    own = {key: value for key, value in given.items() if key != "service"}
    own["state"] = state + "\n" + own.get("state", "")
    return own | {"functions": [*json.loads(functions), *own.get("functions", [])]}


@lru_cache
def _service(name: str) -> tuple[str, str]:
    """State, and functions as JSON."""
    path = SERVICES / f"{name}.toml"
    whole = tomllib.loads(path.read_text("utf-8"))
    return whole["state"], json.dumps(whole["function"])


def too_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than anything that a function asks for."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not (level := [one for some in inner for one in some]):
            return False
    return True


def argument_faults(function: Function, arguments: dict[str, Any]) -> list[str]:
    """What is wrong with the arguments of a call: path, value, and what was expected.

    Raises:
        EnvironmentFailed: the function's schema can't be used.
    """
    from jsonschema.exceptions import SchemaError, UnknownType
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = Draft202012Validator(function.parameters, registry=Registry())  # no schema is fetched from anywhere
    try:
        found = list(itertools.islice(validator.iter_errors(arguments), COUNTED_FAULTS + 1))
    except (RecursionError, Unresolvable, SchemaError, UnknownType, re.error) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise EnvironmentFailed(f"functions.{function.name}.parameters: the schema can't be used: {why}") from error
    errors = sorted(found, key=lambda error: [str(step) for step in error.absolute_path])
    faults = [_fault(error, function) for error in errors[:MAX_FAULTS]]
    if len(errors) > COUNTED_FAULTS:
        return [*faults, f"and more than {COUNTED_FAULTS - MAX_FAULTS} others"]
    return [*faults, f"and {len(errors) - MAX_FAULTS} more"] if len(errors) > MAX_FAULTS else faults


def _fault(error: Any, function: Function) -> str:
    steps = [f"[{one}]" if isinstance(one, int) else f".{short_name(one)}" for one in error.absolute_path]
    where = "".join(steps).lstrip(".") or "arguments"
    properties = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        wanted = ", ".join(f"{name} ({_kind(properties.get(name, {}))})" for name in missing)
        return f"{where}: missing {wanted}"
    if error.validator == "additionalProperties":
        strange = [name for name in error.instance if name not in properties]
        known = nearest(strange[0], properties)
        return f"{where}: {function.name} takes no {short_names(strange, repr)}; {known}"
    expected = {"type": f"type {_kind(error.schema)}", "enum": _kind(error.schema)}.get(
        error.validator, f"{error.validator} {json.dumps(error.validator_value, ensure_ascii=False)}"
    )
    return f"{where}: is {_short(error.instance)}, expected {expected}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 100 else text[:97] + "..."


def short_name(name: str) -> str:
    """A name that the policy made up, cut."""
    return name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}... ({len(name)} characters)"


def short_names(names: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """Some of the names that the policy made up, and how many more there are."""
    given = list(names)
    more = f" and {len(given) - NAMES} more" if len(given) > NAMES else ""
    return ", ".join(shown(short_name(one)) for one in given[:NAMES]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """ "known are b, a, c", the most alike first."""
    name, names = name[:NAME_CHARS], list(known)
    if not names:
        return "there is none"
    alike = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return "known are " + ", ".join([*alike, *(one for one in names if one not in alike)])
