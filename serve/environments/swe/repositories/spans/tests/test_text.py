import pytest
from spans import Span, SpanError, SpanSet, format_spans, parse


def test_parse() -> None:
    assert parse("1-5,8").spans == [Span(1, 5), Span(8, 8)]


def test_nothing_is_the_empty_set() -> None:
    assert parse("") == SpanSet()


def test_no_span() -> None:
    for text in ("a", "1-", "1-2-3", "1,,2"):
        with pytest.raises(SpanError):
            parse(text)


def test_a_span_backwards() -> None:
    with pytest.raises(SpanError):
        parse("5-1")


def test_format() -> None:
    assert format_spans(SpanSet([Span(1, 5), Span(8, 8)])) == "1-5,8"
    assert repr(parse("1-2")) == "SpanSet('1-2')"


def test_order_does_not_matter() -> None:
    assert format_spans(parse("8,1-3")) == "1-3,8"
