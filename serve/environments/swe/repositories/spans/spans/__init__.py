"""Sets of whole numbers, kept as ranges."""

from spans.span import Span, SpanError
from spans.spanset import SpanSet
from spans.text import format_spans, parse

__all__ = ["Span", "SpanError", "SpanSet", "format_spans", "parse"]
