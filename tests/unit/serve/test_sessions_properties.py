"""Random conversations, of which the generator knows the truth: every exchange one turn, every next state its own."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serve.sessions import Made, Tracker
from storage.records import Disposition, Exchange, NextState, Turn
from tests.unit.serve.session_builders import START, Event, calls, exchange, result, says, user

CONTEXT = user(
    [{"type": "text", "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"}]
)
SUMMARY = "The conversation history before this point was compacted into the following summary:\n<summary>s</summary>"
WORDS = "with quite some words more so that it is long enough to be known again"


@dataclass
class World:
    """Sessions of several tenants, talking in turns."""

    rng: random.Random
    asked: list[tuple[float, Exchange]] = field(default_factory=list)
    follows: dict[str, str] = field(default_factory=dict)  # exchange -> its next state
    session_of: dict[str, tuple[str, int]] = field(default_factory=dict)  # exchange -> (tenant, session)
    parent_of: dict[str, str | None] = field(default_factory=dict)
    number: itertools.count = field(default_factory=itertools.count)
    now: float = START

    def run(self, steps: int) -> None:
        talks = [
            Talk(self, f"t{tenant}", n, named=f"s{n}" if self.rng.random() < 0.5 else None)
            for tenant in range(2)
            for n in range(2)
        ]
        for _ in range(steps):
            self.now += self.rng.choice([0.3, 2.0, 30.0])
            self.rng.choice(talks).step()

    def happenings(self) -> list[tuple[float, Exchange]]:
        """In the order in which the tracker hears of them: neighbours of one session may overtake each other."""
        order, n = list(self.asked), 0
        while n < len(order) - 1:
            (at, one), (_, other) = order[n], order[n + 1]
            if self.session_of[one.exchange_id] == self.session_of[other.exchange_id] and self.rng.random() < 0.3:
                order[n], order[n + 1] = (at, other), (at + 0.5, one)
                n += 1
            n += 1
        return [(max(at for at, _ in order[: n + 1]), taken) for n, (_, taken) in enumerate(order)]


@dataclass
class Talk:
    """One session and what its client does."""

    world: World
    tenant: str
    n: int
    named: str | None
    history: list[dict[str, Any]] = field(default_factory=list)
    last: str | None = None  # the exchange whose answer stands last in the history
    last_trains: bool = True

    def step(self) -> None:
        rng = self.world.rng
        if self.history and self.history[-1].get("tool_calls"):
            self._say_results()
        elif not self.history or rng.random() < 0.85:
            self._say_words()
        else:
            self._compact()
            self._say_words()
        request = self._request()
        parent = self.last
        if rng.random() < 0.1:  # a failure, then the client's own retry
            self._ask(request, None, parent, finish_reason="error", error="down")
        if rng.random() < 0.1:
            self._side(request)
        tries = [(self._ask(request, answer, parent), answer) for answer in self._answers()]
        self.last, kept = rng.choice(tries)
        self.last_trains = True
        if rng.random() < 0.1 and "tool_calls" not in kept:  # cut off, and kept in part
            cut = {**kept, "content": kept["content"][: len(kept["content"]) // 2]}
            self.last = self._ask(request, cut, parent, finish_reason="abort")
            self.last_trains, kept = False, {**cut, "content": cut["content"][:-3]}
        self.history.append(kept)

    def _say_words(self) -> None:
        number = next(self.world.number)
        words = "hi" if not self.history else f"words {number}"
        if self.last is not None and self.last_trains:
            self.world.follows[self.last] = words
        prefix = "[Sun 2026-11-29 14:27 UTC] " if self.world.rng.random() < 0.3 else ""
        self.history.append(user(prefix + words))

    def _say_results(self) -> None:
        asked = self.history[-1]["tool_calls"]
        texts = [f"result {next(self.world.number)}" for _ in asked]
        assert self.last is not None
        self.world.follows[self.last] = "\n\n".join(
            f"{call['function']['name']}: {text}" for call, text in zip(asked, texts, strict=True)
        )
        self.history += [result(text, n) for n, text in enumerate(texts)]

    def _compact(self) -> None:
        """Keep the last question, its answer, and a summary before them; only answers that can be found again."""
        if len(self.history) > 4 and self.history[-2]["role"] == "user" and self.last_trains:
            self.history = [user(SUMMARY), *self.history[-2:]]

    def _request(self) -> list[dict[str, Any]]:
        return [*self.history, CONTEXT] if self.world.rng.random() < 0.5 else list(self.history)

    def _answers(self) -> list[dict[str, Any]]:
        given = [self._answer() for _ in range(self.world.rng.choice([1, 1, 1, 2, 3]))]
        return [one for n, one in enumerate(given) if one not in given[:n]]  # equal siblings can't be told apart

    def _answer(self) -> dict[str, Any]:
        number, kind = next(self.world.number), self.world.rng.random()
        if kind < 0.6 or not self.history:
            return says(f"answer {number} {WORDS}")
        if kind < 0.7 and len(self.history) > 1:
            return says("ok")  # as others say too
        names = ["ls", "cat"][: self.world.rng.choice([1, 2])]
        return calls(*names, arguments=f'{{"n": {number}}}')

    def _side(self, request: list[dict[str, Any]]) -> None:
        if self.history[-1]["role"] == "user":
            beat = user("[OpenClaw heartbeat poll]")
            self._ask([*self.history[:-1], beat], says("HEARTBEAT_OK"), self.last)

    def _ask(self, request: list[Any], answer: Any, parent: str | None, **more: Any) -> str:
        world = self.world
        exchange_id = f"E{next(world.number)}"
        taken = exchange(exchange_id, request, answer, world.now, tenant=self.tenant, named_session=self.named, **more)
        world.asked.append((world.now, taken))
        world.session_of[exchange_id] = (self.tenant, self.n)
        world.parent_of[exchange_id] = parent
        world.now += 0.2
        return exchange_id


def listen(tracker: Tracker, happenings: list[tuple[float, Exchange]]) -> list[Event]:
    """Everything that a journal would hold."""
    events: list[Event] = []
    for at, taken in happenings:
        events += _events(tracker.tick(at), at)
        events.append(Event("exchange", taken, at))
        events += _events(tracker.ingest(taken, at), at)
    end = happenings[-1][0] + 5
    return [*events, *_events(tracker.tick(end), end), *_events(tracker.tick(end + 7 * 3600), end + 7 * 3600)]


def _events(made: list[Made], at: float) -> list[Event]:
    names = {Turn: "turn", NextState: "next_state", Disposition: "disposition"}
    return [Event(names[type(record)], record, at) for record in made]


def a_world(seed: int, steps: int) -> tuple[World, list[tuple[float, Exchange]]]:
    world = World(random.Random(seed))
    world.run(steps)
    return world, world.happenings()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 40))
def test_every_exchange_gets_one_turn_and_every_next_state_its_own_answer(seed: int, steps: int) -> None:
    world, happenings = a_world(seed, steps)
    records = [event.record for event in listen(Tracker(), happenings) if event.kind != "exchange"]
    turns = {record.exchange_id: record for record in records if isinstance(record, Turn)}
    assert sorted(record.exchange_id for record in records if isinstance(record, Turn)) == sorted(world.session_of)
    said = {record.exchange_id: record.content for record in records if isinstance(record, NextState)}
    assert sum(isinstance(record, NextState) for record in records) == len(said)
    assert said == world.follows
    for exchange_id, turn in turns.items():
        parent = turn.parent_id
        if parent is not None:
            assert world.session_of[parent] == world.session_of[exchange_id]
    ends = [record.exchange_id for record in records if isinstance(record, Disposition) and record.reason != "too old"]
    assert len(ends) == len(set(ends))
    assert set(ends) | set(said) == set(turns) and not set(ends) & set(said)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 20), cut=st.floats(0, 1), shuffle=st.booleans())
def test_a_restart_at_any_point_changes_nothing(seed: int, steps: int, cut: float, shuffle: bool) -> None:
    world, happenings = a_world(seed, steps)
    events = listen(Tracker(), happenings)
    known = events[: int(cut * len(events))]
    heard = [event.record.exchange_id for event in known if event.kind == "exchange"]
    rest = [(at, taken) for at, taken in happenings if taken.exchange_id not in heard]
    if not rest:
        return
    tracker = Tracker()
    now = known[-1].at if known else START
    again = list(known)
    if shuffle:
        order = {id(event): n for n, event in enumerate(known)}
        world.rng.shuffle(again)
        again.sort(key=lambda event: (event.at, order[id(event)]) if event.kind == "exchange" else (event.at, 0))
    missing = tracker.restore(again, now)
    after = [event.record for event in listen(tracker, rest) if event.kind != "exchange"]
    before = [event.record for event in known if event.kind != "exchange"]
    whole = [event.record for event in events if event.kind != "exchange"]
    assert sorted(map(plain, [*before, *missing, *after])) == sorted(map(plain, whole))


def plain(record: Made) -> str:
    """A record without when it was decided."""
    return str({name: getattr(record, name) for name in record.__slots__ if name != "decided_at"})
