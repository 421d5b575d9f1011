"""One span."""

from dataclasses import dataclass


class SpanError(ValueError):
    """Something that is no span."""


@dataclass(frozen=True, order=True)
class Span:
    """All whole numbers from `first` to `last`, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise SpanError(f"a span from {self.first} to {self.last} is empty")

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def overlaps(self, other: "Span") -> bool:
        """Whether both hold some number."""
        return self.first <= other.last and other.first <= self.last

    def touches(self, other: "Span") -> bool:
        """Whether both together are one span: they overlap, or one begins where the other ends."""
        return self.first <= other.last + 1 and other.first <= self.last + 1

    def shared(self, other: "Span") -> "Span | None":
        """The numbers that both hold."""
        if not self.overlaps(other):
            return None
        return Span(max(self.first, other.first), min(self.last, other.last))

    def without(self, other: "Span") -> list["Span"]:
        """What is left without the numbers of another: none, one or two spans."""
        if not self.overlaps(other):
            return [self]
        left = []
        if self.first < other.first:
            left.append(Span(self.first, other.first - 1))
        if other.last < self.last:
            left.append(Span(other.last + 1, self.last))
        return left
