"""Alarms: what is wrong now, one per source, raised and cleared; what `clawrl status` shows.

Each is logged once when raised and once when cleared, not at every retry in between.
"""

import logging
import time
from dataclasses import dataclass

log = logging.getLogger("clawrl.alarm")


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One thing that needs a look."""

    source: str  # the part, as "store" or "judge"
    text: str  # what is wrong and what to do
    since: float  # Unix seconds
    times: int  # how often it was raised since


class Alarms:
    """The alarms of one process. Safe from several threads: single dict operations only."""

    def __init__(self) -> None:
        self._active: dict[str, Alarm] = {}

    def raise_(self, source: str, text: str) -> None:
        """Raise or renew."""
        before = self._active.get(source)
        if before is None or before.text != text:
            log.error("%s: %s", source, text)
        since, times = (before.since, before.times + 1) if before else (time.time(), 1)
        self._active[source] = Alarm(source=source, text=text[:500], since=since, times=times)

    def clear(self, source: str) -> None:
        """It is over."""
        if self._active.pop(source, None) is not None:
            log.warning("%s: recovered", source)

    def active(self) -> list[Alarm]:
        """Oldest first."""
        return sorted(self._active.values(), key=lambda alarm: alarm.since)
