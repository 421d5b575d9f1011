"""Expressions: a path or a literal, then filters with one argument at most."""

import re
from collections.abc import Mapping
from typing import Any

from stencil.errors import TemplateError
from stencil.filters import FILTERS

PIPE = re.compile(r"""((?:"[^"]*"|'[^']*'|[^|"'])+)""")
CALL = re.compile(r"""\s*(\w+)\s*(?::\s*(.+?))?\s*""", re.DOTALL)


class Expression:
    """One expression of a template."""

    def __init__(self, source: str, line: int) -> None:
        parts = PIPE.findall(source)
        if not parts or not parts[0].strip():
            raise TemplateError("an expression is missing", line)
        self.line = line
        self.first = parts[0].strip()
        self.filters = [self._filter(part) for part in parts[1:]]

    def _filter(self, source: str) -> tuple[str, str | None]:
        match = CALL.fullmatch(source)
        if match is None or match.group(1) not in FILTERS:
            raise TemplateError(f"there is no filter {source.strip()!r}", self.line)
        return match.group(1), match.group(2)

    def value(self, scope: Mapping[str, Any]) -> Any:
        """What the expression is worth in a scope."""
        result = lookup(self.first, scope)
        for name, argument in self.filters:
            arguments = [] if argument is None else [lookup(argument, scope)]
            result = FILTERS[name](result, *arguments)
        return result if result is not None else ""


def lookup(source: str, scope: Mapping[str, Any]) -> Any:
    """A quoted text, a number, or what a dotted path leads to; None where it leads nowhere."""
    if source[0] in "\"'":
        return source[1:-1]
    if re.fullmatch(r"-?\d+", source):
        return int(source)
    value: Any = scope
    for name in source.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list | tuple) and name.isdigit():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = getattr(value, name, None)
    return value
