"""Copies of tests that must fail: what is changed, and that it makes them fail."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest

from serve.environments.swe.twins import plant

FILE = "tests/test_a.py"


def planted(text: str, *failing: str, others: tuple[str, ...] = (), ours: bool = False) -> tuple[str, dict, dict]:
    ids = [f"{FILE}::{name}" for name in failing]
    return plant(FILE, text, ids, [*ids, *(f"{FILE}::{name}" for name in others)], ours)


def fails(test: Callable[[], Any]) -> bool:
    try:
        test()
    except Exception:
        return True
    return False


@pytest.mark.parametrize(
    "body, copies",
    [
        ("assert size == 3", 3),
        ("assert size + 0.25 == 3.25", 3),
        ("assert -size == -3 and word", 3),
        ("assert word == 'v12'", 3),
        ("assert word.encode() == b'v12'", 3),
        ("assert [size, word] == [3, 'v12']", 3),
        ("assert {word: {size}} == {'v12': {3}}", 3),
        ("assert date(2024, 1, size) == date(2024, 1, 3)", 3),
        ("for one in [size]:\n        assert one == 3", 1 + 2),
        ("assert bool(size) is True", 1),
        ("assert size == len('abc')", 1),
        ("assert not word.isalpha()", 1),
        ("assert size in (1, 3)", 1),
        ("assert 1 < size < 4", 1),
        ("with pytest.raises(ValueError):\n        int(word)", 1),
        ("for text in ('a', 'b'):\n        with pytest.raises(ValueError):\n            int(text)", 1),
        ("if size:\n        return\n    assert size == 4", 1),
        ("print(word)", 1),
    ],
)
def test_the_test_passes_and_every_copy_fails(body: str, copies: int) -> None:
    source = "import pytest\nfrom datetime import date\nsize, word = 3, 'v12'\n"
    for _ in range(20):
        text, names, changed = planted(f"{source}def test_one():\n    {body}\n", "test_one")
        made: dict[str, Any] = {}
        exec(compile(text, FILE, "exec"), made)
        tests = {name: made[name] for name in made if name.startswith("test_")}
        assert len(tests) == copies + 1 and len(changed) == copies
        good = [name for name, test in tests.items() if not fails(test)]
        assert names == {f"{FILE}::{good[0]}": f"{FILE}::test_one"} and len(good) == 1
        assert all(re.fullmatch(r"test_one_[0-9a-f]{8}", name) for name in tests)


def test_which_is_the_test_is_not_told_by_place_name_or_value() -> None:
    places, orders, ranks = set(), set(), set()
    for _ in range(100):
        text, names, _ = planted("def test_one():\n    assert 3 == 50\n", "test_one")
        functions = ast.parse(text).body
        (name,) = (one.rpartition("::")[2] for one in names)
        places.add([one.name for one in functions].index(name))
        orders.add(sorted(one.name for one in functions).index(name))
        values = {one.name: one.body[0].test for one in functions}
        side = "left" if len({ast.unparse(one.left) for one in values.values()}) > 1 else "right"
        numbers = {key: (one.left if side == "left" else one.comparators[0]).value for key, one in values.items()}
        if side == "right":
            ranks.add(sorted(numbers.values()).index(numbers[name]))
    assert places == orders == ranks == {0, 1, 2, 3}


def test_one_of_the_tests_that_must_stay_is_copied_too() -> None:
    text = "def test_a():\n    assert 1 == 1\n\nclass TestB:\n    def test_c(self):\n        assert 'x' == 'x'\n"
    _, names, changed = planted(text, "test_a", others=("TestB::test_c",))
    assert set(names.values()) == {f"{FILE}::test_a", f"{FILE}::TestB::test_c"} and len(changed) == 4


def test_where_none_can_be_copied_one_that_must_fail_stands_for_all() -> None:
    text = "import pytest\n@pytest.mark.xfail\ndef test_a():\n    assert 1 == 2\n"
    new, names, changed = planted(text, others=("test_a", "test_made_elsewhere"))
    assert not names and list(changed.values()) == [(f"{FILE}::test_a", f"{FILE}::test_made_elsewhere")]
    made: dict[str, Any] = {}
    exec(compile(new, FILE, "exec"), made)
    assert fails(made[next(iter(changed)).rpartition("::")[2]])
    assert planted("def broken(:", "test_a") == ("def broken(:", {}, {})


def test_what_is_spoken_of_keeps_its_name() -> None:
    text = "def test_a():\n    assert 1 == 1\n\ndef test_b():\n    test_a()\n    assert 2 == 2\n"
    new, names, _ = planted(text, "test_a", "test_b")
    assert set(names.values()) == {f"{FILE}::test_b"} and "def test_a():" in new


def test_instances_of_classes_are_changed_in_our_repositories_alone() -> None:
    text = "def test_a():\n    assert span == Span(1, 6)\n"
    assert len(planted(text, "test_a", ours=True)[2]) == 3
    assert len(planted(text, "test_a")[2]) == 1
