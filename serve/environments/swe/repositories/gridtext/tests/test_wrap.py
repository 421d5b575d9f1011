import pytest
from gridtext import cells, cut, pad, wrap


def test_short_text_is_one_line() -> None:
    assert wrap("one two", 20) == ["one two"]


def test_words_go_to_the_next_line() -> None:
    assert wrap("the quick brown fox", 11) == ["the quick", "brown fox"]


def test_paragraphs_stay() -> None:
    assert wrap("a\nb\n\nc", 10) == ["a b", "", "c"]


def test_long_words_are_broken() -> None:
    assert wrap("abcdefgh", 5) == ["abcde", "fgh"]


def test_nothing() -> None:
    assert wrap("", 10) == []


def test_a_width_that_is_too_small() -> None:
    with pytest.raises(ValueError):
        wrap("text", 1)


def test_cells_and_cut() -> None:
    assert cells("abc") == 3
    assert cut("abcdef", 3) == "abc"


def test_pad() -> None:
    assert pad("ab", 4) == "ab  "
    assert pad("ab", 4, "r") == "  ab"
    assert pad("ab", 5, "c") == " ab  "
    assert pad("abcdef", 3) == "abcdef"
