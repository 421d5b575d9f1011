"""Templates: parsed into nodes once, rendered many times."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from stencil.errors import TemplateError
from stencil.expressions import Expression
from stencil.filters import escape

TAG = re.compile(r"(\{\{.*?\}\}|\{%.*?%\})", re.DOTALL)


class Node(Protocol):
    """A piece of a template."""

    def render(self, scope: dict[str, Any]) -> str: ...


class Text:
    """Text that is shown as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def render(self, scope: dict[str, Any]) -> str:
        return self.text


class Output:
    """The value of an expression, escaped."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def render(self, scope: dict[str, Any]) -> str:
        return escape(self.expression.value(scope))


class For:
    """A part for each item, or another part where there is none."""

    def __init__(self, name: str, items: Expression, body: list[Node], other: list[Node]) -> None:
        self.name, self.items, self.body, self.other = name, items, body, other

    def render(self, scope: dict[str, Any]) -> str:
        items = list(self.items.value(scope))
        if not items:
            return render_all(self.other, scope)
        inner = dict(scope)
        parts = []
        for number, item in enumerate(items, 1):
            inner[self.name] = item
            inner["loop"] = {"number": number, "first": number == 1, "last": number == len(items)}
            parts.append(render_all(self.body, inner))
        return "".join(parts)


class If:
    """One of two parts."""

    def __init__(self, test: Expression, negated: bool, body: list[Node], other: list[Node]) -> None:
        self.test, self.negated, self.body, self.other = test, negated, body, other

    def render(self, scope: dict[str, Any]) -> str:
        return render_all(self.body if bool(self.test.value(scope)) != self.negated else self.other, scope)


def render_all(nodes: list[Node], scope: dict[str, Any]) -> str:
    """The text of several nodes."""
    return "".join(node.render(scope) for node in nodes)


class Parser:
    """Reads a template's source from left to right."""

    def __init__(self, source: str) -> None:
        self.pieces = TAG.split(source)
        self.position = 0
        self.line = 1

    def parse(self, opened: str = "", opened_line: int = 0) -> tuple[list[Node], str]:
        """The nodes up to `else`, `end` or the end of the source, and which of them came."""
        nodes: list[Node] = []
        while self.position < len(self.pieces):
            piece, line = self.pieces[self.position], self.line
            self.position += 1
            self.line += piece.count("\n")
            if piece.startswith("{{"):
                nodes.append(Output(Expression(piece[2:-2], line)))
            elif piece.startswith("{%"):
                words = piece[2:-2].strip()
                if words in ("end", "else"):
                    if not opened:
                        raise TemplateError(f"{words} without an open block", line)
                    return nodes, words
                nodes.append(self.block(words, line))
            elif piece:
                nodes.append(Text(piece))
        if opened:
            raise TemplateError(f"{opened} is never ended", opened_line)
        return nodes, ""

    def block(self, words: str, line: int) -> Node:
        """A whole block, from its opening tag to its end."""
        keyword, _, rest = words.partition(" ")
        if keyword not in ("for", "if"):
            raise TemplateError(f"there is no tag {keyword!r}", line)
        loop = re.fullmatch(r"(\w+)\s+in\s+(.+)", rest.strip(), re.DOTALL)
        if keyword == "for" and loop is None:
            raise TemplateError("a loop needs the form: for NAME in EXPRESSION", line)
        negated = keyword == "if" and rest.strip().startswith("not ")
        source = loop.group(2) if keyword == "for" and loop else rest.strip().removeprefix("not ")
        expression = Expression(source, line)
        body, ended_by = self.parse(keyword, line)
        other: list[Node] = []
        if ended_by == "else":
            other, ended_by = self.parse(keyword, line)
            if ended_by == "else":
                raise TemplateError(f"{keyword} has two else parts", line)
        if keyword == "for" and loop:
            return For(loop.group(1), expression, body, other)
        return If(expression, negated, body, other)


class Template:
    """A parsed template."""

    def __init__(self, source: str) -> None:
        self.nodes, _ = Parser(source).parse()

    def render(self, values: Mapping[str, Any]) -> str:
        """The template's text, filled with these values; they are left as they are."""
        return render_all(self.nodes, dict(values))
