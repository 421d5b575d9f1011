"""Which turn an exchange is: of which session, after which answer, main or side; and what followed each answer.

What it does: `Tracker` takes exchanges in the order in which they were journaled and says, for each, one Turn; a
NextState for the answer that it follows; and a Disposition where a turn ends without becoming trainable.
What it leaves out: the clock (it is passed in), the journal (the caller writes down what it says), judging.

The answer is the anchor: a client may name no session, rewrite its history, retry, run in parallel and compact, but
the answer that it goes on from stands in its request. Only digests are kept. Ids are derived from the exchanges', so
that a replay makes the same ones.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from serve.anchor_search import Anchor, Search, where
from serve.anchors import HEAD, Digest, Shape, answer_digest, answer_text, shape_of
from serve.messages import next_state_of
from serve.session_fields import weak_hints
from serve.session_replay import Event, Past
from serve.turn_kind import TurnKind, turn_kind
from serve.turn_memory import Node, Session, Tenant, derived_id
from storage.records import Disposition, Exchange, NextState, Relation, Turn

Made = Turn | NextState | Disposition

log = logging.getLogger(__name__)

NO_NEXT_STATE = "no next state"
UNREADABLE = "unreadable"  # its messages have a form that the tracker does not know
CUT = "cut by length"  # the answer was cut off at its length limit
NOT_KEPT = "not kept"
TOO_OLD = "too old"


@dataclass(frozen=True, kw_only=True)
class TrackerSettings:
    """How long things are waited for, and how much is remembered."""

    idle_s: float = 6 * 3600.0  # a session ends after so long without a request; people answer agents late
    relook_s: float = 2.0  # a request that came before the answer it follows is looked up again for so long
    retry_s: float = 900.0  # the same first words within so long are a retry, later ones a new conversation
    joining_tokens: int = 20  # the shortest answer by which a rewritten history is joined
    max_turns: int = 100_000  # remembered at once, over all tenants; the oldest are forgotten
    forget_s: float = 7 * 86_400.0  # nothing joins a turn that is older
    max_waiting: int = 1_000  # requests that wait for their predecessor at once


@dataclass(slots=True)
class Waiting:
    """A request whose predecessor is not there yet."""

    exchange: Exchange
    shape: Shape
    answer: Digest | None  # its own
    until: float  # Unix seconds
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where a turn belongs."""

    session: Session
    parent_id: str | None
    relation: Relation
    anchor: Anchor | None = None
    note: str = ""


class Tracker:
    """One per model. Not thread-safe: one owner."""

    def __init__(self, settings: TrackerSettings | None = None, *, train_cut_answers: bool = False) -> None:
        self.settings = settings or TrackerSettings()
        self._train_cut_answers = train_cut_answers
        self._tenants: dict[str, Tenant] = {}
        self._search = Search(self._tenants, self.settings.joining_tokens)
        self._nodes: dict[str, Node] = {}
        self._order: deque[Node] = deque()  # by arrival, for forgetting
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()  # open ones, longest idle first
        self._waiting: dict[str, Waiting] = {}
        self._early_feedback: dict[str, tuple[NextState, float]] = {}
        self._names: dict[str, str] = {}  # one string object for equal clients and hints
        self._turns = {"main": 0, "side": 0}
        self._taken = 0

    # ------------------------------------------------------------------ what happens

    def ingest(self, exchange: Exchange, now: float) -> list[Made]:
        """An exchange was journaled. One that is known already changes nothing."""
        if exchange.exchange_id in self._nodes or exchange.exchange_id in self._waiting:
            return []
        return self._guarded(exchange, now, lambda: self._take_up(exchange, now))

    def _take_up(self, exchange: Exchange, now: float) -> list[Made]:
        shape = shape_of(exchange.messages or [])
        if self._search.must_wait(exchange, shape):
            self._waiting[exchange.exchange_id] = Waiting(
                exchange, shape, answer_digest(exchange.answer), now + self.settings.relook_s
            )
            return self._give_up(now) if len(self._waiting) > self.settings.max_waiting else []
        return [*self._decide(exchange, shape, now), *self._look_again(now)]

    def feedback(self, next_state: NextState, now: float) -> list[Made]:
        """Someone said what an answer was worth. The caller has checked that the answer is theirs."""
        node = self._nodes.get(next_state.exchange_id)
        if node is None:
            self._early_feedback[next_state.exchange_id] = (next_state, now + 30 * self.settings.relook_s)
            return []
        if node.ended is not None:
            return self._too_late(node, "feedback", now)
        node.feedback = True
        self._close(node)
        return [next_state]

    def session_done(self, tenant: str, session_id: str, now: float) -> list[Made]:
        """A session was ended by its client."""
        session = self._sessions.get((tenant, session_id))
        return [] if session is None else self._end(session, now, "its session was ended")

    def tick(self, now: float) -> list[Made]:
        """Time passed: what waited long enough is decided, idle sessions end. Cheap when there is nothing to do."""
        made = self._give_up(now) if self._waiting else []
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if now - session.last_at < self.settings.idle_s:
                break
            made += self._end(session, now, f"nothing followed within {self.settings.idle_s:.0f} s")
        made += self._forget(now)
        if self._early_feedback:
            self._early_feedback = {key: kept for key, kept in self._early_feedback.items() if kept[1] > now}
        return made

    def restore(self, events: Iterable[Event], now: float) -> list[Made]:
        """Replay journal events, in any order. Says what the journal lacks, and nothing that it has."""
        past = Past(events)
        made: list[Made] = []
        for event in past.happened:
            made += self.tick(event.at)
            if event.kind == "exchange":
                record = event.record
                made += self._guarded(record, event.at, lambda id=record.exchange_id: self._again(id, past))
            elif event.kind == "feedback":
                made += self.feedback(event.record, event.at)
            else:
                made += self.session_done(event.record["tenant"], event.record["session_id"], event.at)
        for waiting in self._waiting.values():
            waiting.until = now + self.settings.relook_s
        for node in [node for node in self._nodes.values() if node.waits]:
            reasons = past.ended.get(node.exchange_id)
            if reasons:
                node.ended = next(iter(sorted(reasons)))
            node.next_state = node.exchange_id in past.followed
            if not node.waits:
                self._close(node)
        return [record for record in made if not past.says(record)]

    def snapshot(self) -> dict[str, int]:
        """Counts for `clawrl status`."""
        return {
            "open_sessions": len(self._sessions),
            "open_turns": sum(len(session.open) for session in self._sessions.values()),
            "waiting": len(self._waiting),
            "remembered_turns": len(self._nodes),
            "main_turns": self._turns["main"],
            "side_turns": self._turns["side"],
        }

    # ------------------------------------------------------------------ one turn

    def _guarded(self, exchange: Exchange, now: float, work: Callable[[], list[Made]]) -> list[Made]:
        """One turn that can't be read must not stop the others: it is ended, by name."""
        try:
            return work()
        except Exception as fault:  # boundary: what clients send is theirs to shape, and stands in the journal for good
            log.exception("turn %s can't be placed", exchange.exchange_id)
            self._waiting.pop(exchange.exchange_id, None)
            if node := self._nodes.get(exchange.exchange_id):
                node.ended = UNREADABLE
                node.session.open.pop(node.exchange_id, None)
            detail = f"its messages can't be read: {type(fault).__name__}: {fault}"[:500]
            return [
                Disposition(
                    exchange_id=exchange.exchange_id, sample_id=None, reason=UNREADABLE, detail=detail, decided_at=now
                )
            ]

    def _decide(self, exchange: Exchange, shape: Shape, now: float, *, late: bool = False) -> list[Made]:
        return self._guarded(exchange, now, lambda: self._place(exchange, shape, now, late))

    def _place(self, exchange: Exchange, shape: Shape, now: float, late: bool) -> list[Made]:
        kind = _kind_of(exchange)
        position = self._position(exchange, shape, kind, late)
        anchor = position.anchor
        turn = Turn(
            exchange_id=exchange.exchange_id,
            session_id=position.session.session_id,
            parent_id=position.parent_id,
            relation=position.relation,
            kind=kind.kind,
            why_kind=f"{kind.why}; {position.note}",
            ambiguous=anchor is not None and anchor.ambiguous,
            version=exchange.version,
            decided_at=now,
        )
        return [turn, *self._settle(exchange, shape, kind, position, now)]

    def _again(self, exchange_id: str, past: Past) -> list[Made]:
        """Place an exchange where it was placed before a restart; one that was not yet is new."""
        exchange, at = past.exchanges[exchange_id]
        known = past.turns.get(exchange_id)
        if known is None:
            return self.ingest(exchange, at)
        if exchange_id in self._nodes:
            return []
        made: list[Made] = []
        if known.parent_id in past.exchanges and known.parent_id not in self._nodes:  # it had overtaken its parent
            made += self._again(known.parent_id, past)
        shape = shape_of(exchange.messages or [])
        kind = _kind_of(exchange)
        if kind.kind != known.kind:  # the rules changed since: what was said stands
            kind = replace(kind, kind=known.kind, why=known.why_kind)
        session = self._session(exchange.tenant, known.session_id, named=exchange.named_session is not None)
        parent = self._nodes.get(known.parent_id or "")
        anchor = where(parent, shape) if parent is not None and known.relation != "retry" else None
        position = Position(session, known.parent_id, known.relation, anchor)
        return [*made, *self._settle(exchange, shape, kind, position, at), *self._look_again(at)]

    def _settle(self, exchange: Exchange, shape: Shape, kind: TurnKind, position: Position, now: float) -> list[Made]:
        """Remember a turn that was placed, and say what follows from it."""
        node = self._remember(exchange, shape, kind, position, now)
        made: list[Made] = [*self._next_state(exchange, kind, position, now)]
        if ending := self._ending(exchange, node, kind):
            node.ended = ending[0]
            made.append(_disposition(node, *ending, now))
        if node.waits:
            node.session.open[node.exchange_id] = node
        if early := self._early_feedback.pop(node.exchange_id, None):
            made += self.feedback(early[0], now)
        if exchange.session_done:
            made += self._end(node.session, now, "its session was ended")
        return made

    def _remember(self, exchange: Exchange, shape: Shape, kind: TurnKind, position: Position, now: float) -> Node:
        session = position.session
        aborted = exchange.finish_reason == "abort"
        answered = exchange.finish_reason not in ("error", "refused")
        self._taken += 1
        node = Node(
            exchange_id=exchange.exchange_id, tenant=exchange.tenant, session=session, parent_id=position.parent_id,
            at=exchange.received_at, version=exchange.version, main=kind.kind == "main",
            conversation=shape.conversation, system=shape.system, user=shape.user,
            answer=answer_digest(exchange.answer) if answered else None, tokens=len(exchange.response_ids),
            client=self._one(exchange.client), hints=self._one(weak_hints(exchange.session_fields)),
            head=answer_text(exchange.answer)[:HEAD] if aborted else None, silent=kind.silent, order=self._taken,
        )  # fmt: skip
        self._nodes[node.exchange_id] = node
        self._order.append(node)
        self._tenants.setdefault(exchange.tenant, Tenant()).add(node)
        self._turns[kind.kind] += 1
        session.turns += 1
        session.last_at = max(session.last_at, now)
        self._sessions[session.key] = session
        self._sessions.move_to_end(session.key)
        return node

    def _ending(self, exchange: Exchange, node: Node, kind: TurnKind) -> tuple[str, str] | None:
        """Why a turn can't train, where that is known at once: (reason, sentence)."""
        if exchange.finish_reason in ("error", "refused"):
            return exchange.finish_reason, exchange.error or "there was no answer"
        if kind.kind == "side":
            return "side", kind.why
        if exchange.finish_reason == "abort":
            return "aborted", "the client went away before the answer was complete"
        if node.answer is None or not node.tokens:
            return "empty answer", "the answer says nothing and calls no tool"
        if exchange.finish_reason == "length" and not self._train_cut_answers:
            return (
                CUT,
                f"the answer was cut off at {node.tokens} tokens (samples.train_cut_answers lets such answers train)",
            )
        return None

    # ------------------------------------------------------------------ where a turn belongs

    def _position(self, exchange: Exchange, shape: Shape, kind: TurnKind, late: bool) -> Position:
        anchor = self._search.find(exchange, shape, anywhere=late)
        repeated = self._search.repeated(exchange, shape, main=kind.kind == "main")
        if repeated is not None and self._is_retry(exchange, shape, repeated, anchor):
            session = self._session_of(exchange, repeated.session)
            return Position(session, repeated.parent_id, "retry", None, "it repeats an earlier request")
        if anchor is None:
            session = self._session_of(exchange, None)
            if not session.turns:
                return Position(session, None, "first", None, "the first turn of its session")
            return Position(session, None, "branch", None, "a conversation of its own within its session")
        session = self._session_of(exchange, anchor.node.session)
        note = {
            "exact": "it goes on from an answer that was given",
            "cut off": "it goes on from an answer that was cut off",
            "rewritten": "the history was rewritten (compacted or pruned); joined by an answer that was kept",
        }[anchor.how]
        return Position(session, anchor.node.exchange_id, self._relation(anchor, session, shape, kind), anchor, note)

    def _relation(self, anchor: Anchor, session: Session, shape: Shape, kind: TurnKind) -> Relation:
        node = anchor.node
        if anchor.how == "rewritten" or session.key != node.session.key:
            return "branch"
        if node.child is not None and node.child != shape.conversation and kind.kind == "main":
            return "branch"
        return "follow"

    def _is_retry(self, exchange: Exchange, shape: Shape, repeated: Node, anchor: Anchor | None) -> bool:
        if shape.places:  # unless the same talk was begun anew since: then an answer of it still waits to be followed
            node = anchor.node if anchor is not None else repeated
            return not (node.waits and node.order > repeated.order)
        if exchange.named_session is None and repeated.child is not None:
            return False  # that talk has gone on: the same first words begin another one
        return abs(exchange.received_at - repeated.at) <= self.settings.retry_s

    def _session_of(self, exchange: Exchange, joined: Session | None) -> Session:
        if exchange.named_session is not None:
            return self._session(exchange.tenant, exchange.named_session, named=True)
        if joined is not None:
            return joined
        session_id = derived_id(exchange.received_at, "session", exchange.tenant, exchange.exchange_id)
        return Session(exchange.tenant, session_id, named=False)

    def _session(self, tenant: str, session_id: str, *, named: bool) -> Session:
        found = self._sessions.get((tenant, session_id))
        return found if found is not None else Session(tenant, session_id, named)

    # ------------------------------------------------------------------ what followed

    def _next_state(self, exchange: Exchange, kind: TurnKind, position: Position, now: float) -> Iterator[Made]:
        """What a request says of the answer that it goes on from."""
        anchor = position.anchor
        if anchor is None or position.relation == "retry" or kind.kind == "side":
            return
        if anchor.node.child is None:
            anchor.node.child = self._nodes[exchange.exchange_id].conversation
        messages, place = exchange.messages, anchor.place
        found = next_state_of(messages[place.end :], messages[place.start : place.end])
        node = self._addressee(anchor.node, found[0]) if found is not None else None
        if found is None or node is None or node.next_state:
            return
        if node.ended not in (None, CUT):  # what followed an answer that was cut is worth keeping, if not training
            yield from self._too_late(node, "what followed it", now)
            return
        node.next_state = True
        self._close(node)
        yield NextState(
            next_state_id=derived_id(exchange.received_at, "next", node.exchange_id, exchange.exchange_id),
            exchange_id=node.exchange_id, role=found[0], content=found[1],
            source_exchange_id=exchange.exchange_id, arrived_at=exchange.received_at,
        )  # fmt: skip

    def _addressee(self, node: Node, role: str) -> Node | None:
        """Whom words are for: nobody saw a side turn's silent token, so they answer what was said before it."""
        seen: Node | None = node
        while seen is not None and not seen.main:
            seen = self._nodes.get(seen.parent_id or "") if seen.silent and role == "user" else None
        return seen

    def _too_late(self, node: Node, what: str, now: float) -> list[Made]:
        if node.late or node.ended not in (NO_NEXT_STATE, NOT_KEPT):
            return []
        node.late = True
        return [_disposition(node, TOO_OLD, f"{what} came after its turn was closed ({node.ended})", now)]

    def _close(self, node: Node) -> None:
        node.session.open.pop(node.exchange_id, None)

    # ------------------------------------------------------------------ time

    def _give_up(self, now: float) -> list[Made]:
        """Decide what waited long enough (or, where too many wait, the oldest) with what there is."""
        made: list[Made] = []
        for key, waiting in list(self._waiting.items()):
            if key in self._waiting and (waiting.until <= now or len(self._waiting) > self.settings.max_waiting):
                made += self._decide_waiting(waiting, now)
        return made

    def _decide_waiting(self, waiting: Waiting, now: float) -> list[Made]:
        """First the request whose answer it waits for, where that one waits too; then all in the order they came."""
        made: list[Made] = []
        waiting.given_up = True
        for other in list(self._waiting.values()):
            if not other.given_up and _goes_on_from(waiting, other):
                made += self._decide_waiting(other, now)
        if self._waiting.pop(waiting.exchange.exchange_id, None) is not None:
            late = self._search.must_wait(waiting.exchange, waiting.shape)
            made += self._decide(waiting.exchange, waiting.shape, now, late=late)
        return [*made, *self._look_again(now)]

    def _look_again(self, now: float) -> list[Made]:
        """Decide what waited for an answer that has come."""
        made: list[Made] = []
        again = bool(self._waiting)
        while again:
            again = False
            for key, waiting in list(self._waiting.items()):
                if not self._search.must_wait(waiting.exchange, waiting.shape):
                    del self._waiting[key]
                    made += self._decide(waiting.exchange, waiting.shape, now)
                    again = bool(self._waiting)
        return made

    def _end(self, session: Session, now: float, why: str) -> list[Made]:
        """Close a session: its turns that await something are sealed untrained."""
        self._sessions.pop(session.key, None)
        made: list[Made] = []
        for node in list(session.open.values()):
            node.ended = NOT_KEPT if self._another_was_kept(node) else NO_NEXT_STATE
            detail = f"{why}, and another answer to the same request was kept" if node.ended == NOT_KEPT else why
            made.append(_disposition(node, node.ended, detail, now))
        session.open.clear()
        return made

    def _another_was_kept(self, node: Node) -> bool:
        equal = self._tenants[node.tenant].requests.get(node.conversation)
        return any(other.next_state and other.session.key == node.session.key for other in equal if other is not node)

    def _forget(self, now: float) -> list[Made]:
        made: list[Made] = []
        while self._order and (
            len(self._order) > self.settings.max_turns or now - self._order[0].at > self.settings.forget_s
        ):
            node = self._order.popleft()
            if node.waits:
                node.ended = NO_NEXT_STATE
                detail = f"it was the oldest of {self.settings.max_turns} remembered turns"
                made.append(_disposition(node, NO_NEXT_STATE, detail, now))
                self._close(node)
            del self._nodes[node.exchange_id]
            self._tenants[node.tenant].remove(node)
        return made

    def _one(self, text: str) -> str:
        if len(self._names) > 10_000:
            self._names.clear()
        return self._names.setdefault(text, text)


def _kind_of(exchange: Exchange) -> TurnKind:
    return turn_kind(exchange.messages or [], exchange.tools, exchange.sampling, exchange.answer, exchange.turn_type)


def _goes_on_from(one: Waiting, other: Waiting) -> bool:
    if one.exchange.tenant != other.exchange.tenant:
        return False
    shape = other.shape
    return any(
        place.answer == other.answer and (place.before == shape.conversation or place.user == shape.user)
        for place in one.shape.places
    )


def _disposition(node: Node, reason: str, detail: str, now: float) -> Disposition:
    return Disposition(exchange_id=node.exchange_id, sample_id=None, reason=reason, detail=detail, decided_at=now)
