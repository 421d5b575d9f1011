from datetime import datetime

import pytest
from dateline import DateError, Moment, parse, parse_offset, relative


def test_a_day() -> None:
    assert parse("2024-03-01") == Moment(datetime(2024, 3, 1))


def test_a_time_with_seconds() -> None:
    assert parse("2024-03-01 08:30:15").local == datetime(2024, 3, 1, 8, 30, 15)


def test_nonsense_is_an_error() -> None:
    with pytest.raises(DateError):
        parse("next week")


def test_offsets() -> None:
    assert parse_offset("Z") == 0
    assert parse_offset("+0200") == 120
    assert parse_offset("-03:00") == -180


def test_a_moment_in_utc_is_itself() -> None:
    assert parse("2024-03-01T08:30Z").to_utc() == datetime(2024, 3, 1, 8, 30)


def test_repr_shows_the_offset() -> None:
    assert repr(Moment(datetime(2024, 3, 1), 60)) == "Moment(2024-03-01T00:00:00+01:00)"


def test_in_two_hours() -> None:
    now = parse("2024-03-01T23:00Z")
    assert relative("in 2h", now) == parse("2024-03-02T01:00Z")
    assert relative("1d ago", now) == parse("2024-02-29T23:00Z")
