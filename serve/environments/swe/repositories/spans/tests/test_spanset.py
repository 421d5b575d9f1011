from spans import Span, SpanSet, parse


def test_membership() -> None:
    numbers = parse("1-5,8")
    assert 1 in numbers and 3 in numbers and 8 in numbers
    assert 0 not in numbers and 6 not in numbers and 9 not in numbers


def test_overlapping_spans_are_one() -> None:
    assert SpanSet([Span(1, 4), Span(3, 6)]).spans == [Span(1, 6)]


def test_a_span_that_covers_others() -> None:
    assert SpanSet([Span(1, 2), Span(5, 6), Span(0, 9)]).spans == [Span(0, 9)]


def test_remove_from_the_middle() -> None:
    numbers = parse("1-9")
    numbers.remove(Span(4, 6))
    assert numbers == parse("1-3,7-9")


def test_union() -> None:
    assert parse("1-3") | parse("7-9") == parse("1-3,7-9")


def test_intersection() -> None:
    assert parse("1-5,8-12") & parse("4-9") == parse("4-5,8-9")


def test_difference() -> None:
    assert parse("1-9") - parse("1-3,9") == parse("4-8")


def test_gaps() -> None:
    assert parse("3-4,7").gaps(1, 9) == parse("1-2,5-6,8-9")


def test_iteration_and_length() -> None:
    assert list(parse("1-3,7")) == [1, 2, 3, 7]
    assert len(parse("1-3,7")) == 4
