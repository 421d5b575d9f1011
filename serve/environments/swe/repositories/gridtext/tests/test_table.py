import pytest
from gridtext import Table


def test_a_table() -> None:
    table = Table(["name", "age"], align="lr")
    table.add("Ada", 36)
    assert table.render() == "name  age\n----  ---\nAda    36"


def test_columns_are_as_wide_as_needed() -> None:
    table = Table(["n", "m"])
    table.add("long text", "x")
    assert table.widths() == [9, 1]


def test_no_blanks_at_the_end() -> None:
    table = Table(["a", "long name"])
    table.add("x", "y")
    assert all(line == line.rstrip() for line in table.render().splitlines())


def test_none_is_empty() -> None:
    table = Table(["a", "b"])
    table.add(None, 1)
    assert table.render().splitlines()[2] == "   1"


def test_too_many_values() -> None:
    with pytest.raises(ValueError):
        Table(["a"]).add(1, 2)


def test_an_unknown_alignment() -> None:
    with pytest.raises(ValueError):
        Table(["a"], align="x")


def test_sorting_texts() -> None:
    table = Table(["a"])
    for text in ("b", "c", "a"):
        table.add(text)
    table.sort("a")
    assert table.rows == [["a"], ["b"], ["c"]]


def test_sorting_backwards() -> None:
    table = Table(["a"])
    for number in (1, 3, 2):
        table.add(number)
    table.sort("a", reverse=True)
    assert table.rows == [[3], [2], [1]]
