"""Months and years."""

from datetime import date

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year: int) -> bool:
    """Whether the year has a 29 February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year: int, month: int) -> int:
    """How many days the month has."""
    if month == 2 and is_leap(year):
        return 29
    return DAYS[month - 1]


def add_months(day: date, months: int) -> date:
    """The same day some months later (or earlier); the last day of that month where it has no such day."""
    count = day.year * 12 + (day.month - 1) + months
    year, month = divmod(count, 12)
    month += 1
    return day.replace(year=year, month=month, day=min(day.day, days_in_month(year, month)))
