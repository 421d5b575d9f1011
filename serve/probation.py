"""Probation: the first answers of a new version are watched, and a bad version is found out by what it says.

An answer is bad when it is empty or when it repeats itself without end. The version before is the measure: a user who
asks for repetition does not bring a version down.
"""

from collections import Counter, deque
from dataclasses import dataclass

from storage.records import Exchange


@dataclass(frozen=True, kw_only=True)
class ProbationSettings:
    """How long, and how bad."""

    answers: int = 8  # answers watched
    bad_share: float = 0.5  # of the answers watched so far, above the share before: the version is taken back
    least: int = 3  # bad answers before a verdict: a small model loops in one answer of ten, and two come together
    gram: int = 6  # tokens: an answer repeats when one run of so many tokens ...
    repeats: int = 4  # ... stands in it so often, covering half of it


def is_bad(exchange: Exchange, settings: ProbationSettings) -> bool:
    """Empty, or half of it is one run of tokens again and again."""
    ids = exchange.response_ids
    if len(ids) <= 1:
        return True
    n = settings.gram
    grams = Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
    if not grams:
        return False
    repeated = sum(count for count in grams.values() if count >= settings.repeats)
    return repeated >= 0.5 * len(ids)


class Probation:
    """Watches one version at a time."""

    def __init__(self, settings: ProbationSettings) -> None:
        self.settings = settings
        self.version: int | None = None  # on probation now
        self._seen: list[bool] = []
        self._before: deque[bool] = deque(maxlen=16)  # the answers of versions that stood
        self._newest = 0  # that was ever on probation
        self._early: list[tuple[int, bool]] = []  # answers of versions that serve already, before `begin` is called
        self._gone: set[int] = set()  # versions that were taken back

    def begin(self, version: int) -> bool:
        """A new version went live; True where its first answers, which may have come before this, say that it failed.

        One that was still on probation counts as having stood.
        """
        self._before.extend(self._seen)
        self.version, self._newest = version, version
        self._seen = [bad for early, bad in self._early if early == version]
        self._early = []
        return self._failed()

    def watch(self, exchange: Exchange) -> bool:
        """Take an answer; True once the version on probation has failed. Aborted answers say nothing."""
        if exchange.finish_reason not in ("stop", "length", "tool_calls"):
            return False
        bad = is_bad(exchange, self.settings)
        if exchange.version in self._gone:
            return False  # it was under way when its version was taken back: says nothing of those that stood
        if exchange.version > self._newest:
            self._early = [*self._early, (exchange.version, bad)][-self.settings.answers :]
            return False
        if self.version is None or exchange.version != self.version:
            self._before.append(bad)
            return False
        self._seen.append(bad)
        if len(self._seen) >= self.settings.answers and not self._failed():
            self._before.extend(self._seen)
            self.version, self._seen = None, []
            return False
        return self._failed()

    def end(self) -> None:
        """The version was taken back: forget its answers."""
        if self.version is not None:
            self._gone.add(self.version)
        self.version, self._seen = None, []

    def progress(self) -> str:
        """For people: "3 of 8 answers watched, 1 bad"."""
        if self.version is None:
            return "none"
        return f"v{self.version}: {len(self._seen)} of {self.settings.answers} answers watched, {sum(self._seen)} bad"

    def _failed(self) -> bool:
        if sum(self._seen) < self.settings.least:
            return False
        before = sum(self._before) / len(self._before) if self._before else 0.0
        return sum(self._seen) / len(self._seen) - before >= self.settings.bad_share
