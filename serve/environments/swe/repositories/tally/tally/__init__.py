"""A calculator for one line."""

from tally.errors import CalcError
from tally.evaluation import evaluate
from tally.parser import parse
from tally.tokens import Token, tokenize

__all__ = ["CalcError", "Token", "evaluate", "parse", "tokenize"]
