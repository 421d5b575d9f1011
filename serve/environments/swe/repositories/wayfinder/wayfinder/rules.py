"""One rule: a path with holes."""

import re
from typing import Any

from wayfinder.converters import CONVERTERS
from wayfinder.errors import BuildError

HOLE = re.compile(r"<(?:(\w+):)?(\w+)>")


class Rule:
    """A rule, ready to match and to build."""

    def __init__(self, template: str, name: str, methods: tuple[str, ...]) -> None:
        if not template.startswith("/"):
            raise ValueError(f"{template!r} must begin with a slash")
        self.template, self.name, self.methods = template, name, methods
        self.names = [match.group(2) for match in HOLE.finditer(template)]
        self.kinds = [match.group(1) or "segment" for match in HOLE.finditer(template)]
        if unknown := [kind for kind in self.kinds if kind not in CONVERTERS]:
            raise ValueError(f"{template!r}: there is no converter {unknown[0]!r}")
        fixed = HOLE.split(template)[::3]
        pattern = re.escape(fixed[0])
        for kind, text in zip(self.kinds, fixed[1:], strict=True):
            pattern += f"({CONVERTERS[kind].pattern})" + re.escape(text)
        self.pattern = re.compile(pattern)
        self.fixed = fixed

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts the most specific rule first."""
        ranks = []
        for segment in self.template.strip("/").split("/"):
            hole = HOLE.search(segment)
            ranks.append(CONVERTERS[hole.group(1) or "segment"].rank if hole else 0)
        return tuple(ranks)

    def match(self, path: str) -> dict[str, Any] | None:
        """The values in a path, or None where it does not fit."""
        match = self.pattern.fullmatch(path)
        if match is None:
            return None
        parts = zip(self.names, self.kinds, match.groups(), strict=True)
        return {name: CONVERTERS[kind].read(text) for name, kind, text in parts}

    def build(self, values: dict[str, Any]) -> str:
        """The path for these values; those that it takes are removed from them."""
        path = self.fixed[0]
        for name, kind, text in zip(self.names, self.kinds, self.fixed[1:], strict=True):
            if values.get(name) is None:
                raise BuildError(f"{self.name}: a value for {name!r} is missing")
            try:
                path += CONVERTERS[kind].write(values.pop(name)) + text
            except ValueError as error:
                raise BuildError(f"{self.name}: {name}: {error}") from error
        return path
