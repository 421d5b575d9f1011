"""The cache."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

MISSING = object()


@dataclass
class Statistics:
    """How often something was found."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def ratio(self) -> float:
        """Hits of all lookups; 0 before the first."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


@dataclass
class Entry:
    """A value, and when it is no longer one."""

    value: Any
    expires: float | None


class Cache:
    """At most `maxsize` entries, each for `ttl` seconds."""

    def __init__(
        self, maxsize: int = 128, ttl: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize is {maxsize}: at least 1 is needed")
        self.maxsize, self.ttl, self.clock = maxsize, ttl, clock
        self.statistics = Statistics()
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def _live(self, key: Hashable) -> Entry | None:
        entry = self.entries.get(key)
        if entry is not None and entry.expires is not None and self.clock() >= entry.expires:
            del self.entries[key]
            return None
        return entry

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key, which is thereby used."""
        entry = self._live(key)
        if entry is None:
            self.statistics.misses += 1
            return default
        self.statistics.hits += 1
        self.entries.move_to_end(key)
        return entry.value

    def set(self, key: Hashable, value: Any, ttl: float | None = None) -> None:
        """Keep a value, for `ttl` seconds where given, else for the cache's own."""
        lifetime = self.ttl if ttl is None else ttl
        expires = None if lifetime is None else self.clock() + lifetime
        if key not in self.entries:
            self.purge()
            while len(self.entries) >= self.maxsize:
                self.entries.popitem(last=False)
                self.statistics.evictions += 1
        self.entries[key] = Entry(value, expires)
        self.entries.move_to_end(key)

    def delete(self, key: Hashable) -> bool:
        """Forget a key; whether it was there."""
        live = self._live(key) is not None
        self.entries.pop(key, None)
        return live

    def touch(self, key: Hashable, ttl: float) -> bool:
        """Let a live entry live `ttl` seconds from now; whether it was there."""
        entry = self._live(key)
        if entry is None:
            return False
        entry.expires = self.clock() + ttl
        return True

    def purge(self) -> int:
        """Forget what has expired; how many there were."""
        before = len(self.entries)
        for key in list(self.entries):
            self._live(key)
        return before - len(self.entries)

    def __contains__(self, key: Hashable) -> bool:
        return self._live(key) is not None

    def __len__(self) -> int:
        self.purge()
        return len(self.entries)

    def __iter__(self) -> Iterator[Hashable]:
        """The live keys, the one used longest ago first."""
        self.purge()
        return iter(list(self.entries))
