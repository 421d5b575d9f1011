"""Sets of spans."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from spans.span import Span


class SpanSet:
    """Spans in order, none touching another."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans: list[Span] = []
        for span in spans:
            self.add(span)

    def add(self, span: Span) -> None:
        """Take in the numbers of a span."""
        first, last = span.first, span.last
        kept = []
        for other in self.spans:
            if other.touches(span):
                first, last = min(first, other.first), max(last, other.last)
            else:
                kept.append(other)
        kept.append(Span(first, last))
        self.spans = sorted(kept)

    def remove(self, span: Span) -> None:
        """Leave out the numbers of a span."""
        self.spans = [left for own in self.spans for left in own.without(span)]

    def copy(self) -> "SpanSet":
        """A set with the same numbers; changes of one leave the other."""
        other = SpanSet()
        other.spans = list(self.spans)
        return other

    def gaps(self, low: int, high: int) -> "SpanSet":
        """The numbers from `low` to `high` that are not in the set."""
        return SpanSet([Span(low, high)]) - self

    def __or__(self, other: "SpanSet") -> "SpanSet":
        result = self.copy()
        for span in other.spans:
            result.add(span)
        return result

    def __sub__(self, other: "SpanSet") -> "SpanSet":
        result = self.copy()
        for span in other.spans:
            result.remove(span)
        return result

    def __and__(self, other: "SpanSet") -> "SpanSet":
        pairs = (one.shared(two) for one in self.spans for two in other.spans)
        return SpanSet(span for span in pairs if span is not None)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.spans, number, key=lambda span: span.first)
        return place > 0 and number in self.spans[place - 1]

    def __iter__(self) -> Iterator[int]:
        for span in self.spans:
            yield from range(span.first, span.last + 1)

    def __len__(self) -> int:
        return sum(len(span) for span in self.spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanSet) and self.spans == other.spans

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        from spans.text import format_spans

        return f"SpanSet({format_spans(self)!r})"
