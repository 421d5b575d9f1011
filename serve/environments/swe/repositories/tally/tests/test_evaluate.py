import math

import pytest
from tally import CalcError, evaluate


def test_sums_and_products() -> None:
    assert evaluate("2 + 3 * 4") == 14
    assert evaluate("(2 + 3) * 4") == 20
    assert evaluate("10 - 3 - 2") == 5


def test_divisions() -> None:
    assert evaluate("7 / 2") == 3.5
    assert evaluate("7 // 2") == 3
    assert evaluate("7 % 4") == 3


def test_powers_and_signs() -> None:
    assert evaluate("2^10") == 1024
    assert evaluate("-3 + 5") == 2
    assert evaluate("2 * -3") == -6


def test_names() -> None:
    assert evaluate("price * 2", {"price": 10}) == 20
    assert evaluate("pi") == math.pi
    assert evaluate("pi", {"pi": 3}) == 3


def test_functions() -> None:
    assert evaluate("max(1, 5, 3) + abs(-2)") == 7
    assert evaluate("sqrt(16)") == 4


def test_whole_numbers_stay_whole() -> None:
    assert isinstance(evaluate("2 + 3"), int)


def test_rounding() -> None:
    assert evaluate("round(2.4)") == 2
    assert evaluate("round(2.126, 2)") == 2.13


def test_division_by_zero() -> None:
    with pytest.raises(CalcError) as caught:
        evaluate("1 + 4 / 0")
    assert caught.value.position == 6


def test_an_unknown_name() -> None:
    with pytest.raises(CalcError) as caught:
        evaluate("1 + nothing")
    assert caught.value.position == 4


def test_too_many_arguments() -> None:
    with pytest.raises(CalcError):
        evaluate("abs(1, 2)")
