"""The router: all rules together."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from wayfinder.errors import BuildError, MethodNotAllowed, NotFound
from wayfinder.rules import Rule


@dataclass(frozen=True)
class Match:
    """The rule that fits, and the values in the path."""

    name: str
    values: dict[str, Any]


class Router:
    """Rules, the most specific first."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def add(self, template: str, name: str | None = None, methods: tuple[str, ...] = ("GET",)) -> None:
        """Add a rule; without a name it is called by its template."""
        rule = Rule(template, name or template, tuple(method.upper() for method in methods))
        self.rules.append(rule)
        self.rules.sort(key=lambda rule: rule.order)

    def match(self, path: str, method: str = "GET") -> Match:
        """The first rule that fits a path (without its query) and a method.

        Raises:
            NotFound: no rule fits the path.
            MethodNotAllowed: rules fit the path, none the method.
        """
        path = path.partition("?")[0]
        if len(path) > 1:
            path = path.rstrip("/") or "/"
        allowed: set[str] = set()
        for rule in self.rules:
            values = rule.match(path)
            if values is None:
                continue
            if method.upper() in rule.methods:
                return Match(rule.name, values)
            allowed.update(rule.methods)
        if allowed:
            raise MethodNotAllowed(method.upper(), sorted(allowed))
        raise NotFound(path)

    def build(self, name: str, **values: Any) -> str:
        """The path of a rule, with a query for what the rule does not take.

        Raises:
            BuildError: there is no such rule, or a value is missing or does not fit.
        """
        rule = next((rule for rule in self.rules if rule.name == name), None)
        if rule is None:
            raise BuildError(f"there is no rule {name!r}")
        rest = dict(values)
        path = rule.build(rest)
        query = urlencode({key: value for key, value in rest.items() if value is not None}, doseq=True)
        return f"{path}?{query}" if query else path
