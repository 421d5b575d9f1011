"""Plain numbers, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.environments.tool_call.numbers import PlainNumber, read_number, same_number, tidy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("-42", -42), ("+5", 5), ("−3", -3), ("42.", 42), ("0.5", "1/2"), (".5", "1/2"), ("1/2", "1/2"),
        ("\\frac{1}{2}", "1/2"), ("\\frac12", "1/2"), ("-\\dfrac{3}{4}", "-3/4"), ("\\frac{-3}{4}", "-3/4"),
        ("1 1/2", "3/2"), ("1\\frac{1}{2}", "3/2"), ("1,234,567.5", "2469135/2"), ("12 345", 12345), ("1{,}000", 1000),
        ("$42", 42), ("$42$", 42), ("€ 42", 42), ("42 km", 42), ("42 km/h", 42), ("3 m^2", 3), ("42\\text{ cm}", 42),
        ("-4 °C", -4), ("90^\\circ", 90), ("x = 42", 42), ("\\boxed{42}", 42), ("\\(42\\)", 42), ("**42**", 42),
        ("1.5e3", 1500), ("3 \\times 10^{4}", 30000), ("3x10^4", 30000), ("10^9", 10**9), ("2.5*10**-1", "1/4"),
    ],
)  # fmt: skip
def test_a_number_is_read_whatever_dresses_it(text, value):
    assert read_number(text).value == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "42 or 43", "42, 43", "42 43", "42; 43", "{42, 43}", "[42, 43]", "42\n43", "42-43", "42..43",
        "42 / 43 / 44",
        "17*23", "17 + 23", "4/2", "2/4", "84/2", "5!", "2^10", "sqrt(4)", "\\sqrt{4}", "3x", "5 pi", "5 not 6", "1,23",
        "about 5", "five", "--5", "5/0", "nan", "inf", "0x10", "9" * 400, "41.5 < x < 42.5", "not 42", "42 or so",
        "5 versus six", "5 vs 6", "5 six", "5 but maybe six", "5 squared", "2 thirds", "5 over two", "5 hundred six",
    ],
)  # fmt: skip
def test_what_is_not_one_finished_number_is_none(text):
    assert read_number(text) is None


def same(label, answer, tolerance=None):
    return same_number(read_number(label), read_number(answer), tolerance)


def test_equal_values_in_other_clothes_are_the_same():
    assert (
        same("1/2", "0.5") and same("0.75", "75%") and same("75%", "0.75") and same("40", "40%") and same("7", "7.00")
    )
    assert same("1/3", "0.333333") and same("-2", "-2 apples") and same("5 kg", "5") and same("3 hours", "3 hour")


def test_a_percent_is_neither_a_hundred_times_nor_a_hundredth_of_itself():
    assert same("50%", "50%") and same("50%", "0.5") and same("50%", "50") and same("50%", "1/2")
    assert same("0.5", "50%") and same("40", "40%") and same("1", "100%")
    assert not same("50%", "5000%") and not same("50%", "0.5%") and not same("0.5", "0.5%") and not same("0.5", "5000%")


def test_a_scale_multiplies():
    assert same("5000000", "5 million") and same("24", "2 dozen eggs") and not same("5", "5 million")


def test_near_values_are_not_the_same_without_a_tolerance():
    assert (
        not same("1/3", "0.333")
        and not same("42", "42.001")
        and not same("12345678901234567890", "12345678901234567891")
    )
    assert (
        not same("0.0000001", "0.0000002")
        and not same("42", "-42")
        and not same("5 kg", "5 g")
        and not same("0", "0.1")
    )


def test_a_tolerance_is_what_the_task_says():
    assert same("3.14", "3.1416", Fraction("0.01")) and not same("3.14", "3.2", Fraction("0.01"))


@given(st.fractions())
def test_every_fraction_comes_back(value):
    text = str(value)
    assert read_number(text) == PlainNumber(value)
    assert read_number(f"\\boxed{{{text}}}") == PlainNumber(value)


@given(st.text())
def test_no_text_makes_it_raise(text):
    read_number(text)
    tidy(text)
