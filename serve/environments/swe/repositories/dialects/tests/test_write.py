import pytest
from dialects import Dialect, read, sniff, write


def test_plain_fields() -> None:
    assert write([["a", 1], ["b", 2.5]]) == "a,1\nb,2.5\n"


def test_quotes_where_needed() -> None:
    assert write([["a,b", 'x"y']]) == '"a,b","x""y"\n'


def test_what_is_written_is_read_back() -> None:
    rows = [["a\nb", "", "c,d"], ['"', "e", " f "]]
    assert read(write(rows)) == rows


def test_a_delimiter_is_one_character() -> None:
    with pytest.raises(ValueError):
        Dialect(delimiter="::")


def test_sniffing() -> None:
    assert sniff("a;b;c\n1;2;3\n").delimiter == ";"
    assert sniff("a\tb\n1\t2\n").delimiter == "\t"


def test_sniffing_without_a_delimiter() -> None:
    assert sniff("one\ntwo\n").delimiter == ","


def test_sniffing_passes_over_quotes() -> None:
    assert sniff('"a;b"|c\n"d;e"|f\n').delimiter == "|"
