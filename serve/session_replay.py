"""What a journal already says of turns, put in order for a tracker that starts. Pure."""

from collections.abc import Iterable
from typing import Any, Protocol

from storage.records import Disposition, Exchange, NextState, Turn

_HAPPENINGS = ("exchange", "feedback", "session_done")


class Event(Protocol):
    """A journal event, as `storage.journal.JournalEvent`."""

    @property
    def kind(self) -> str: ...
    @property
    def record(self) -> Any: ...
    @property
    def at(self) -> float: ...


class Past:
    """The events of a journal, in any order: what happened, by time, and what was said of it."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.happened: list[Event] = []
        self.exchanges: dict[str, tuple[Exchange, float]] = {}
        self.turns: dict[str, Turn] = {}
        self.followed: dict[str, NextState] = {}  # by the answer's exchange, feedback left out
        self.next_state_ids: set[str] = set()
        self.ended: dict[str, set[str]] = {}  # exchange -> reasons
        for event in events:
            self._take(event)
        self.happened.sort(key=lambda event: event.at)

    def says(self, record: Turn | NextState | Disposition) -> bool:
        """Whether the journal has a record, or something that settles the same question."""
        exchange_id = record.exchange_id
        if isinstance(record, Turn):
            return exchange_id in self.turns
        if isinstance(record, NextState):
            return record.next_state_id in self.next_state_ids or (
                record.role != "feedback" and exchange_id in self.followed
            )
        return record.reason in self.ended.get(exchange_id, ())

    def _take(self, event: Event) -> None:
        kind, record = event.kind, event.record
        if kind == "exchange":
            if record.exchange_id in self.exchanges:
                return
            self.exchanges[record.exchange_id] = (record, event.at)
        elif kind == "turn":
            self.turns.setdefault(record.exchange_id, record)
        elif kind == "next_state":
            self.next_state_ids.add(record.next_state_id)
            if record.role != "feedback":
                self.followed.setdefault(record.exchange_id, record)
        elif kind == "disposition" and record.sample_id is None:
            self.ended.setdefault(record.exchange_id, set()).add(record.reason)
        if kind in _HAPPENINGS:
            self.happened.append(event)
