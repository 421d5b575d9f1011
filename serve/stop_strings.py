"""Stop strings: cut off where they are complete, never leaked in part.

What it does: `StopCutter.push(text)` passes on what can't be the beginning of a stop string. Of several that are met,
the one that is complete first counts (as an engine would see it token by token), of those the one that begins first.
What it leaves out: stop tokens (the engine's).
"""

from collections.abc import Sequence


class StopCutter:
    """Cuts text before the stop string that is complete first, and holds back what may become one."""

    def __init__(self, stop: Sequence[str]) -> None:
        if any(not isinstance(text, str) or not text for text in stop):
            raise ValueError(f"stop is {stop!r}: each stop string must be a string of at least one character")
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.hit: str | None = None  # the stop string that was met

    def push(self, text: str) -> str:
        """What may be passed on."""
        if self.hit is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = max(partial_end(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held for nothing."""
        held, self._held = self._held, ""
        return held


def partial_end(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
