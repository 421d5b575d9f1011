import pytest
from dialects import Dialect, DialectError, read, read_dicts


def test_rows() -> None:
    assert read("a,b\n1,2\n") == [["a", "b"], ["1", "2"]]


def test_quotes() -> None:
    assert read('"a,b","say ""hi"""\n') == [["a,b", 'say "hi"']]


def test_a_line_end_in_quotes() -> None:
    assert read('"a\nb",c\n') == [["a\nb", "c"]]


def test_windows_line_ends() -> None:
    assert read("a,b\r\nc,d\r\n") == [["a", "b"], ["c", "d"]]


def test_another_delimiter() -> None:
    assert read("a;b,c\n", Dialect(delimiter=";")) == [["a", "b,c"]]


def test_blank_lines_are_skipped() -> None:
    assert read("a\n\nb\n") == [["a"], ["b"]]


def test_a_quote_that_is_never_closed() -> None:
    with pytest.raises(DialectError) as caught:
        read('a\n"b\n')
    assert caught.value.line == 2


def test_text_after_a_quote() -> None:
    with pytest.raises(DialectError):
        read('"a"b\n')


def test_nulls() -> None:
    assert read("a,,b\n", Dialect(nulls=True)) == [["a", None, "b"]]
    assert read("a,,b\n") == [["a", "", "b"]]


def test_dicts() -> None:
    assert read_dicts("name,age\nAda,36\n") == [{"name": "Ada", "age": "36"}]


def test_dicts_of_short_rows() -> None:
    assert read_dicts("a,b\n1\n") == [{"a": "1", "b": None}]
