import pytest
from dateline import DateError, format_duration, parse_duration


def test_units() -> None:
    assert parse_duration("1h30m") == 5400
    assert parse_duration("2w") == 1209600


def test_fractions() -> None:
    assert parse_duration("1.5h") == 5400


def test_negative() -> None:
    assert parse_duration("-2d") == -172800


def test_no_duration() -> None:
    for text in ("", "5", "h", "1h 30m", "3y"):
        with pytest.raises(DateError):
            parse_duration(text)


def test_format() -> None:
    assert format_duration(5400) == "1h30m"
    assert format_duration(0) == "0s"
