import pytest
from tally import CalcError, parse, tokenize


def test_tokens() -> None:
    assert [token.text for token in tokenize("a+12//(3)")] == ["a", "+", "12", "//", "(", "3", ")", ""]


def test_positions() -> None:
    assert [token.position for token in tokenize("1 + 23")] == [0, 2, 4, 6]


def test_a_strange_character() -> None:
    with pytest.raises(CalcError) as caught:
        tokenize("1 + $")
    assert caught.value.position == 4


def test_what_is_no_expression() -> None:
    for line in ("", "1 +", "(1", "1 2", "min(1,", ")"):
        with pytest.raises(CalcError):
            parse(line)


def test_a_tree() -> None:
    node = parse("1 + 2 * 3")
    assert node.token.text == "+"
    assert [child.token.text for child in node.children] == ["1", "*"]
