from datetime import date

from dateline import add_months, days_in_month, is_leap


def test_leap_years() -> None:
    assert is_leap(2024) and is_leap(2000)
    assert not is_leap(1900) and not is_leap(2023)


def test_days_of_short_and_long_months() -> None:
    assert days_in_month(2023, 1) == 31
    assert days_in_month(2023, 4) == 30


def test_february() -> None:
    assert days_in_month(2024, 2) == 29
    assert days_in_month(2023, 2) == 28


def test_add_months_within_a_year() -> None:
    assert add_months(date(2024, 3, 15), 2) == date(2024, 5, 15)


def test_add_months_keeps_to_the_last_day() -> None:
    assert add_months(date(2024, 1, 31), 1) == date(2024, 2, 29)
