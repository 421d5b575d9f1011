"""Dates, offsets and durations from short texts."""

from dateline.calendar import add_months, days_in_month, is_leap
from dateline.durations import format_duration, parse_duration
from dateline.errors import DateError
from dateline.moments import Moment, parse, parse_offset, relative

__all__ = [
    "DateError",
    "Moment",
    "add_months",
    "days_in_month",
    "format_duration",
    "is_leap",
    "parse",
    "parse_duration",
    "parse_offset",
    "relative",
]
