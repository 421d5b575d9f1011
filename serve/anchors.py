"""What of a request can be found again: digests of its conversation and of every answer that stands in it.

A request is boiled down to a `Shape`: a chain of digests over its non-ephemeral messages, and one `Place` per answer in
it, with the chain's value before that answer. An answer that we gave was recorded with the chain's value of the request
that it answered, so a place and a recorded answer that agree in both are one and the same turn.
What it leaves out: which recorded answer is meant where several agree (`serve/sessions.py`).

Consecutive messages of one role count as one, and an answer split over several messages is also looked for in one
piece: clients merge and split them at will. System messages are outside the chain: clients put clocks and memories in
them, which change from turn to turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from serve.messages import CALL, Message, fold, is_assistant, pieces

Digest = bytes  # 12 bytes: collisions among 10^9 turns are one in 10^11
HEAD = 64  # characters of an answer that was cut off by which its continuation is known

_SIZE = 12


@dataclass(frozen=True, slots=True)
class Place:
    """An answer that stands in a request."""

    start: int  # index of its first message
    end: int  # index after its last message
    answer: Digest  # of the answer alone
    before: Digest  # of the conversation before it
    user: Digest | None  # of the last words of the user before it
    head: str  # how the answer begins, white space folded, HEAD characters


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a request can be found again."""

    conversation: Digest  # of all its non-ephemeral messages but the system's
    system: Digest  # of its system messages
    user: Digest | None  # of the last words of the user
    places: tuple[Place, ...]  # newest first; an answer in several messages first by its last one, then in one piece
    turns: int  # how many messages counted


def digest(text: str) -> Digest:
    """A short digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()


def answer_digest(answer: Message | None) -> Digest | None:
    """Of an answer that we gave; None where it is empty and can't be found again."""
    text = answer_text(answer)
    return digest(text) if text else None


def answer_text(answer: Message | None) -> str:
    """An answer's canonical text with its tool calls; empty where it said and called nothing."""
    if answer is None:
        return ""
    return "".join(fold(piece.text) + piece.calls for piece in pieces({**answer, "role": "assistant"}))


def shape_of(messages: Sequence[Message]) -> Shape:
    """Boil a request's messages down. Linear in their length."""
    return _Chain().run(messages)


class _Chain:
    """The running state of `shape_of`."""

    def __init__(self) -> None:
        self.chain, self.system = blake2b(digest_size=_SIZE), blake2b(digest_size=_SIZE)
        self.raw = blake2b(digest_size=_SIZE)
        self.role: str | None = None
        self.user: Digest | None = None
        self.counted = 0
        self.places: list[list[Place]] = []  # per run of answers: single ones, then the whole
        self.run_start = 0
        self.run_before: Digest = b""
        self.run_texts: list[tuple[str, str]] = []

    def run(self, messages: Sequence[Message]) -> Shape:
        for index, message in enumerate(messages):
            for piece in pieces(message):
                text = fold(piece.text)
                if piece.role == "system":
                    self.system.update(text.encode("utf-8", "surrogatepass") + b"\x00")
                elif piece.role == "assistant":
                    self._answer(index, text, piece.calls)
                else:
                    self._add(piece.role, text)
                    if piece.role == "user":
                        self.user = digest(text)
        if not self.counted:  # nothing but blocks of the client's: these are all there is to go by
            for message in messages:
                if not is_assistant(message):
                    self._add("user", fold(str(message.get("content"))))
        return Shape(
            conversation=self.chain.digest(), system=self.system.digest(), user=self.user,
            places=tuple(place for run in reversed(self.places) for place in _newest_first(run)), turns=self.counted,
        )  # fmt: skip

    def _answer(self, index: int, text: str, calls: str) -> None:
        before = self.chain.digest()
        if self.role != "assistant":
            self.places.append([])
            self.run_start, self.run_before, self.run_texts = index, before, []
        run = self.places[-1]
        if len(self.run_texts) > 1:
            run.pop()  # the piece that ended at the message before
        self.run_texts.append((text, calls))
        run.append(Place(index, index + 1, digest(text + calls), before, self.user, text[:HEAD]))
        if len(self.run_texts) > 1:
            joined = " ".join(text for text, _ in self.run_texts if text)
            whole = digest(joined + "".join(calls for _, calls in self.run_texts))
            run.append(Place(self.run_start, index + 1, whole, self.run_before, self.user, joined[:HEAD]))
        self._add("assistant", text + calls)

    def _add(self, role: str, text: str) -> None:
        self.counted += 1
        if role != self.role or role == "tool":
            mark = f"\x00{role}\x00{text}"
        else:
            mark = text if text.startswith(CALL) else f" {text}"
        self.chain.update(mark.encode("utf-8", "surrogatepass"))
        self.role = role


def _newest_first(run: list[Place]) -> list[Place]:
    """The last message of a run of answers, then the run in one piece, then the earlier messages."""
    if len(run) < 2:
        return run
    singles, whole = run[:-1], run[-1]
    return [singles[-1], whole, *reversed(singles[:-1])]
