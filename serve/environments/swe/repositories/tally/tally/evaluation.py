"""From a tree to a number."""

import operator
from collections.abc import Callable, Mapping

from tally.errors import CalcError
from tally.functions import CONSTANTS, FUNCTIONS, Number
from tally.parser import Node, parse

BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.pow,
}


def evaluate(line: str, names: Mapping[str, Number] | None = None) -> Number:
    """What a line is worth; names given go before constants.

    Raises:
        CalcError: the line is no expression, or has no value.
    """
    return value_of(parse(line), {**CONSTANTS, **(names or {})})


def value_of(node: Node, names: Mapping[str, Number]) -> Number:
    """What a tree is worth."""
    text, position = node.token.text, node.token.position
    if node.token.kind == "number":
        return number(text)
    if node.token.kind == "name" and not node.call:
        if text not in names:
            raise CalcError(f"{text!r} is unknown", position)
        return names[text]
    values = [value_of(child, names) for child in node.children]
    try:
        if node.call:
            return call(text, values, position)
        if len(values) == 1:
            return -values[0] if text == "-" else values[0]
        return BINARY[text](values[0], values[1])
    except (ArithmeticError, ValueError) as error:
        raise CalcError(str(error), position) from error


def number(text: str) -> Number:
    """A whole number where it is written as one."""
    return int(text) if text.replace("_", "").isdigit() else float(text)


def call(name: str, values: list[Number], position: int) -> Number:
    """The value of a function."""
    if name not in FUNCTIONS:
        raise CalcError(f"there is no function {name!r}", position)
    function, fewest, most = FUNCTIONS[name]
    if not fewest <= len(values) <= most:
        raise CalcError(f"{name} takes {fewest} to {most} values, not {len(values)}", position)
    return function(*values)
