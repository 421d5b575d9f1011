"""Sets as texts."""

import re

from spans.span import Span, SpanError
from spans.spanset import SpanSet

PART = re.compile(r"\s*(-?\d+)\s*(?:-\s*(-?\d+)\s*)?")


def parse(text: str) -> SpanSet:
    """The set of a text like `1-5,8`; an empty text is the empty set.

    Raises:
        SpanError: a part is no number and no span, or its end is below its beginning.
    """
    result = SpanSet()
    if not text.strip():
        return result
    for part in text.split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise SpanError(f"{part.strip()!r} is no span")
        first, last = match.groups()
        result.add(Span(int(first), int(first if last is None else last)))
    return result


def format_spans(spans: SpanSet) -> str:
    """The text that `parse` reads back."""
    return ",".join(str(s.first) if s.first == s.last else f"{s.first}-{s.last}" for s in spans.spans)
