"""Short ways to write conversations for the tracker's tests."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from serve.sessions import Made, Tracker, TrackerSettings
from storage.records import Disposition, Exchange, NextState, Turn, VersionSpan

START = 1_700_000_000.0


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*names: str, text: str | None = None, arguments: str = "{}") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, name in enumerate(names)
        ],
    }


def result(text: str, n: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{n}", "content": text}


def exchange(
    exchange_id: str, messages: list[Any], answer: Any, at: float, *, tokens: int = 30, **more: Any
) -> Exchange:
    given = says(answer) if isinstance(answer, str) else answer
    if given is None:
        tokens = 0
    return Exchange(
        **{
            "exchange_id": exchange_id, "tenant": "t", "model": "m", "version": 0, "received_at": at,
            "messages": messages, "tools": None, "sampling": {}, "prompt_ids": (1, 2),
            "response_ids": tuple(range(tokens)), "response_logprobs": (-0.5,) * tokens,
            "version_spans": (VersionSpan(version=0, start=0, end=tokens),), "answer": given,
            "finish_reason": "tool_calls" if given and given.get("tool_calls") else "stop", "latency_s": 0.5,
            "first_token_s": 0.1, "client": "test/1", **more,
        }
    )  # fmt: skip


@dataclass(frozen=True)
class Event:
    """As the journal's."""

    kind: str
    record: Any
    at: float


@dataclass
class Scene:
    """A tracker with a clock and everything it said."""

    settings: TrackerSettings = field(default_factory=TrackerSettings)
    train_cut_answers: bool = False
    now: float = START
    made: list[Made] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.settings, train_cut_answers=self.train_cut_answers)

    def ask(self, messages: list[Any], answer: Any, *, after: float = 5.0, **more: Any) -> str:
        """An exchange arrives; its id."""
        self.count += 1
        exchange_id = more.pop("exchange_id", f"E{self.count}")
        self.now += after
        self.take(exchange(exchange_id, messages, answer, self.now, **more))
        return exchange_id

    def take(self, taken: Exchange) -> None:
        self.hear(self.tracker.tick(self.now))
        self.events.append(Event("exchange", taken, self.now))
        self.hear(self.tracker.ingest(taken, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.hear(self.tracker.tick(self.now))

    def hear(self, made: Iterable[Made]) -> None:
        for record in made:
            self.made.append(record)
            kind = {Turn: "turn", NextState: "next_state", Disposition: "disposition"}[type(record)]
            self.events.append(Event(kind, record, self.now))

    def turn(self, exchange_id: str) -> Turn:
        (found,) = [r for r in self.made if isinstance(r, Turn) and r.exchange_id == exchange_id]
        return found

    def next_of(self, exchange_id: str) -> str | None:
        found = [r.content for r in self.made if isinstance(r, NextState) and r.exchange_id == exchange_id]
        assert len(found) <= 1, found
        return found[0] if found else None

    def role_of(self, exchange_id: str) -> str:
        (found,) = [r.role for r in self.made if isinstance(r, NextState) and r.exchange_id == exchange_id]
        return found

    def ended(self, exchange_id: str) -> list[str]:
        return [r.reason for r in self.made if isinstance(r, Disposition) and r.exchange_id == exchange_id]
