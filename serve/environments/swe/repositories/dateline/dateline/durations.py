"""Durations: `1d2h3m4s` and back, in whole seconds."""

import re

from dateline.errors import DateError

UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
PART = re.compile(r"(\d+(?:\.\d+)?)([a-z])")


def parse_duration(text: str) -> int:
    """Seconds of a duration like `1h30m`, `1.5h` or `-2d`.

    Raises:
        DateError: the text is no duration.
    """
    rest = text.strip().lower()
    sign = -1 if rest.startswith("-") else 1
    rest = rest.lstrip("+-")
    total, position = 0.0, 0
    for match in PART.finditer(rest):
        if match.start() != position or match.group(2) not in UNITS:
            raise DateError(f"no duration: {text!r}")
        total += float(match.group(1)) * UNITS[match.group(2)]
        position = match.end()
    if position == 0 or position != len(rest):
        raise DateError(f"no duration: {text!r}")
    return sign * round(total)


def format_duration(seconds: int) -> str:
    """The shortest text that `parse_duration` reads as these seconds; `0s` for none."""
    if seconds == 0:
        return "0s"
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    parts = []
    for name in ("d", "h", "m", "s"):
        count, rest = divmod(rest, UNITS[name])
        if count:
            parts.append(f"{count}{name}")
    return sign + "".join(parts)
