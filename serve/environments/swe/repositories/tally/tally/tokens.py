"""From a line to tokens."""

import re
from dataclasses import dataclass

from tally.errors import CalcError

NUMBER = re.compile(r"(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
NAME = re.compile(r"[^\W\d]\w*")
OPERATOR = re.compile(r"//|[-+*/%^(),]")


@dataclass(frozen=True)
class Token:
    """A piece of a line: `number`, `name`, `operator` or `end`."""

    kind: str
    text: str
    position: int


def tokenize(line: str) -> list[Token]:
    """The tokens of a line, with `end` behind the last.

    Raises:
        CalcError: a character that begins no token.
    """
    tokens = []
    position = 0
    while position < len(line):
        if line[position].isspace():
            position += 1
            continue
        for kind, pattern in (("number", NUMBER), ("name", NAME), ("operator", OPERATOR)):
            match = pattern.match(line, position)
            if match:
                tokens.append(Token(kind, match.group(), position))
                position = match.end()
                break
        else:
            raise CalcError(f"{line[position]!r} is not understood", position)
    tokens.append(Token("end", "", len(line)))
    return tokens
