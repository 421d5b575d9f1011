"""Moments: a local time with its offset from UTC."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from dateline.durations import parse_duration
from dateline.errors import DateError

MOMENT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?P<offset>Z|[+-].*)?)?"
)
OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")


@dataclass(frozen=True)
class Moment:
    """A local time and how many minutes it is ahead of UTC."""

    local: datetime
    offset: int = 0

    def to_utc(self) -> datetime:
        """The same moment in UTC."""
        return self.local - timedelta(minutes=self.offset)

    def at_offset(self, offset: int) -> "Moment":
        """The same moment as a clock at another offset shows it."""
        return Moment(self.to_utc() + timedelta(minutes=offset), offset)

    def __lt__(self, other: "Moment") -> bool:
        return self.to_utc() < other.to_utc()

    def same_as(self, other: "Moment") -> bool:
        """Whether both are one moment, whatever their offsets."""
        return self.to_utc() == other.to_utc()

    def __repr__(self) -> str:
        sign, minutes = ("-", -self.offset) if self.offset < 0 else ("+", self.offset)
        return f"Moment({self.local.isoformat()}{sign}{minutes // 60:02}:{minutes % 60:02})"


def parse_offset(text: str) -> int:
    """Minutes ahead of UTC: `Z`, `+05:30`, `-0330`.

    Raises:
        DateError: the text is no offset.
    """
    if text == "Z":
        return 0
    match = OFFSET.fullmatch(text)
    if match is None or int(match.group(3)) > 59:
        raise DateError(f"no offset: {text!r}")
    minutes = int(match.group(2)) * 60 + int(match.group(3))
    return -minutes if match.group(1) == "-" else minutes


def parse(text: str) -> Moment:
    """The moment that a text names; without an offset it is UTC.

    Raises:
        DateError: the text is no date, or names a day or hour that does not exist.
    """
    match = MOMENT.fullmatch(text.strip())
    if match is None:
        raise DateError(f"no date: {text!r}")
    clock = f"{match['hour'] or '00'}:{match['minute'] or '00'}:{match['second'] or '00'}"
    try:
        local = datetime.fromisoformat(f"{match['date']}T{clock}")
    except ValueError as error:
        raise DateError(f"no date: {text!r}: {error}") from error
    return Moment(local, parse_offset(match["offset"] or "Z"))


def relative(text: str, now: Moment) -> Moment:
    """`today`, `tomorrow`, `yesterday` (midnight by now's own clock), `in 2h`, `3d ago`."""
    words = text.strip().lower()
    days = {"yesterday": -1, "today": 0, "tomorrow": 1}
    if words in days:
        midnight = now.local.replace(hour=0, minute=0, second=0, microsecond=0)
        return Moment(midnight + timedelta(days=days[words]), now.offset)
    if words.startswith("in "):
        return Moment(now.local + timedelta(seconds=parse_duration(words[3:])), now.offset)
    if words.endswith(" ago"):
        return Moment(now.local - timedelta(seconds=parse_duration(words[:-4])), now.offset)
    raise DateError(f"no relative date: {text!r}")
