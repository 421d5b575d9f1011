"""From tokens to a tree."""

from dataclasses import dataclass

from tally.errors import CalcError
from tally.tokens import Token, tokenize


@dataclass(frozen=True)
class Node:
    """A token and what it is applied to."""

    token: Token
    children: tuple["Node", ...] = ()
    call: bool = False


class Parser:
    """Goes through the tokens from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    def take(self, *texts: str) -> Token | None:
        """The present token, where it is one of these operators; the next is then the present one."""
        token = self.token
        if token.kind != "operator" or token.text not in texts:
            return None
        self.place += 1
        return token

    def need(self, text: str) -> None:
        """Pass over an operator that must come here."""
        if self.take(text) is None:
            raise CalcError(f"{text!r} is missing", self.token.position)

    def sum(self) -> Node:
        node = self.product()
        while operator := self.take("+", "-"):
            node = Node(operator, (node, self.product()))
        return node

    def product(self) -> Node:
        node = self.signed()
        while operator := self.take("*", "/", "//", "%"):
            node = Node(operator, (node, self.signed()))
        return node

    def signed(self) -> Node:
        if operator := self.take("+", "-"):
            return Node(operator, (self.signed(),))
        return self.power()

    def power(self) -> Node:
        base = self.atom()
        if operator := self.take("^"):
            return Node(operator, (base, self.signed()))
        return base

    def atom(self) -> Node:
        token = self.token
        if self.take("("):
            node = self.sum()
            self.need(")")
            return node
        if token.kind not in ("number", "name"):
            raise CalcError("a value is missing", token.position)
        self.place += 1
        if token.kind == "name" and self.take("("):
            return Node(token, self.arguments(), call=True)
        return Node(token)

    def arguments(self) -> tuple[Node, ...]:
        """The arguments of a call, up to its closing bracket."""
        if self.take(")"):
            return ()
        found = [self.sum()]
        while self.take(","):
            found.append(self.sum())
        self.need(")")
        return tuple(found)


def parse(line: str) -> Node:
    """The tree of a line.

    Raises:
        CalcError: the line is no expression.
    """
    parser = Parser(tokenize(line))
    node = parser.sum()
    if parser.token.kind != "end":
        raise CalcError(f"{parser.token.text!r} is not expected", parser.token.position)
    return node
