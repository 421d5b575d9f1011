"""How much of an episode's history a policy is shown.

What it does: `Conversation` keeps all of it and gives the messages of the next step: everything (`keep_all`), the
first and the last turns (`head_tail`), or the last ones after a summary of the older (`summary`: a line a step).
What it leaves out: counting tokens. The limit is in turns, and the same for every model.

What is left out is always said in the first user message, and a turn is left out wholly: an answer never loses its
results. Pictures are kept for the last `pictures` observations; older ones become a line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serve.environments.prompts import Message

Kind = Literal["keep_all", "head_tail", "summary"]


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """What is kept."""

    kind: Kind = "keep_all"
    head: int = 1  # first turns that head_tail keeps
    tail: int = 6  # last turns that head_tail and summary keep
    pictures: int = 1  # last observations whose pictures are shown

    def __post_init__(self) -> None:
        if self.kind not in ("keep_all", "head_tail", "summary"):
            raise ValueError(f"context is {self.kind!r}: keep_all, head_tail or summary is needed")
        for name, least in (("head", 0), ("tail", 1), ("pictures", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"context {name} is {value!r}: a whole number from {least} is needed")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer and what came back."""

    answer: Message
    results: tuple[Message, ...]
    summary: str  # a line: what was done and what it gave


def summarize(turns: Sequence[Turn]) -> str:
    """A line a step."""
    return "Steps so far:\n" + "\n".join(f"{number}. {turn.summary}" for number, turn in enumerate(turns, 1))


class Conversation:
    """The messages of one episode. `summarizer` may be a model's; it is given the turns that are left out."""

    def __init__(
        self, first: Sequence[Message], settings: ContextSettings,
        summarizer: Callable[[Sequence[Turn]], str] = summarize,
    ) -> None:  # fmt: skip
        self._first, self._settings, self._summarizer = tuple(first), settings, summarizer
        self.turns: list[Turn] = []

    def add(self, turn: Turn) -> None:
        """One more turn."""
        self.turns.append(turn)

    def messages(self) -> list[Message]:
        """What the policy is shown next."""
        head, tail, note = self._kept()
        shown = [*self._begin(note), *(message for turn in [*head, *tail] for message in (turn.answer, *turn.results))]
        return _without_old_pictures(shown, self._settings.pictures)

    def _kept(self) -> tuple[list[Turn], list[Turn], str]:
        turns, kind = self.turns, self._settings.kind
        head = self._settings.head if kind == "head_tail" else 0
        left_out = turns[head : max(head, len(turns) - self._settings.tail)]
        if kind == "keep_all" or not left_out:
            return turns, [], ""
        if kind == "summary":
            return [], turns[len(left_out) :], self._summarizer(left_out)
        place = f"after the first {head} " if head else "from the beginning "
        note = f"({len(left_out)} earlier steps are left out here, {place}of {len(turns)}.)"
        return turns[:head], turns[head + len(left_out) :], note

    def _begin(self, note: str) -> list[Message]:
        if not note:
            return list(self._first)
        *others, user = self._first
        content = user["content"]
        if isinstance(content, str):
            return [*others, {**user, "content": f"{content}\n\n{note}"}]
        return [*others, {**user, "content": [*content, {"type": "text", "text": note}]}]


def _without_old_pictures(messages: list[Message], keep: int) -> list[Message]:
    """Newest last: all but the last `keep` messages with pictures have a line in their place."""
    shown: list[Message] = []
    for message in reversed(messages):
        parts = message.get("content")
        if isinstance(parts, list) and any(part["type"] == "image_url" for part in parts):
            keep -= 1
            if keep < 0:
                message = {**message, "content": _texts(parts)}
        shown.append(message)
    return shown[::-1]


def _texts(parts: list[dict[str, Any]]) -> str:
    return "\n".join([*(part["text"] for part in parts if part["type"] == "text"), "(an earlier picture)"])
