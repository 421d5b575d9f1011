"""The learner's memory of turns that are not finished: their exchanges (packed), and how many ended for which reason.

Bounded by what is open: a finished turn leaves only a count. The journal has everything else.
"""

import zlib
from collections import Counter

import orjson

from storage.arrow import from_json, to_json
from storage.records import Disposition, Exchange


class TurnBook:
    """Open turns by exchange id. Not thread-safe: one owner."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}
        self._version_of: dict[str, int] = {}
        self._open_in: dict[int, set[str]] = {}
        self._decided_by: dict[str, str] = {}
        self.ended: Counter[str] = Counter()  # turns that did not train, by reason
        self.trained = 0  # turns that did
        self.accepted = 0  # all turns seen since the start of the journal

    def put(self, exchange: Exchange) -> None:
        """Open a turn. About a tenth of its JSON stays in memory."""
        if exchange.exchange_id in self._version_of:
            return
        self.accepted += 1
        self._packed[exchange.exchange_id] = zlib.compress(to_json(exchange), 1)
        self._version_of[exchange.exchange_id] = exchange.version
        self._open_in.setdefault(exchange.version, set()).add(exchange.exchange_id)

    def get(self, exchange_id: str) -> Exchange | None:
        """The exchange of an open turn."""
        packed = self._packed.get(exchange_id)
        return None if packed is None else from_json(Exchange, orjson.loads(zlib.decompress(packed)))

    def version(self, exchange_id: str) -> int | None:
        """The version whose journal segment an open turn belongs to."""
        return self._version_of.get(exchange_id)

    def decide_by(self, exchange_id: str, next_state_id: str, *, feedback: bool) -> bool:
        """Name the next state whose verdict counts: the first one, unless feedback comes. False where it does not."""
        if exchange_id not in self._version_of or (exchange_id in self._decided_by and not feedback):
            return False
        self._decided_by[exchange_id] = next_state_id
        return True

    def decides(self, exchange_id: str, next_state_id: str) -> bool:
        """Whether this next state's verdict is the one that counts."""
        return self._decided_by.get(exchange_id) == next_state_id

    def end(self, disposition: Disposition) -> None:
        """A turn ended without training."""
        if self._close(disposition.exchange_id):
            self.ended[disposition.reason] += 1

    def train(self, exchange_id: str) -> None:
        """A turn's sample was consumed by a committed update."""
        if self._close(exchange_id):
            self.trained += 1

    def open_in(self, version: int) -> int:
        """Turns of a version that are not finished: its journal is sealed at 0."""
        return len(self._open_in.get(version, ()))

    @property
    def open(self) -> int:
        """Turns that are not finished."""
        return len(self._version_of)

    def _close(self, exchange_id: str) -> bool:
        version = self._version_of.pop(exchange_id, None)
        self._packed.pop(exchange_id, None)
        self._decided_by.pop(exchange_id, None)
        if version is None:
            return False
        self._open_in[version].discard(exchange_id)
        if not self._open_in[version]:
            del self._open_in[version]
        return True
