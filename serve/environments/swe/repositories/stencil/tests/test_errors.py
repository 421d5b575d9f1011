import pytest
from stencil import TemplateError, render


def test_an_unknown_filter() -> None:
    with pytest.raises(TemplateError, match="no filter 'shout'"):
        render("{{ a|shout }}")


def test_an_unknown_tag_knows_its_line() -> None:
    with pytest.raises(TemplateError) as caught:
        render("one\ntwo\n{% while x %}")
    assert caught.value.line == 3


def test_a_block_that_is_never_ended() -> None:
    with pytest.raises(TemplateError, match="never ended"):
        render("{% if a %}text")


def test_an_empty_expression() -> None:
    with pytest.raises(TemplateError):
        render("{{ }}")
