"""The search for the recorded answer that a request goes on from, and for an equal request before it.

What it leaves out: what is made of it (`serve/sessions.py`) and the digests that are compared (`serve/anchors.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serve.anchors import Place, Shape
from serve.session_fields import weak_hints
from serve.turn_memory import Node, Tenant
from storage.records import Exchange


@dataclass(frozen=True, slots=True)
class Anchor:
    """The answer that a request goes on from, and where it stands in the request."""

    node: Node
    place: Place
    how: str = "exact"  # or "cut off": kept in part, or "rewritten": the history before it is another
    ambiguous: bool = False


class Search:
    """Over the turns of all tenants, never across two."""

    def __init__(self, tenants: Mapping[str, Tenant], joining_tokens: int) -> None:
        self._tenants = tenants
        self._joining_tokens = joining_tokens

    def must_wait(self, exchange: Exchange, shape: Shape) -> bool:
        """Whether the last answer in a request is one that we don't know (yet)."""
        if not shape.places:
            return False
        newest = [place for place in shape.places if place.end == shape.places[0].end]
        if any(self._exact(exchange, place) or self._cut_off(exchange, place) for place in newest):
            return False
        tenant = self._tenants.get(exchange.tenant)
        known = tenant.requests.get(shape.conversation) if tenant is not None else ()
        return not any(_in_scope(node, exchange) for node in known)

    def find(self, exchange: Exchange, shape: Shape, *, anywhere: bool = False) -> Anchor | None:
        """The newest answer in a request that we gave."""
        for place in shape.places:
            for how, found in (
                ("exact", self._exact(exchange, place)),
                ("cut off", self._cut_off(exchange, place)),
                ("rewritten", self._rewritten(exchange, place)),
            ):
                if found:
                    node, ambiguous = _best(found, exchange, shape)
                    return Anchor(node, place, how, ambiguous)
        if anywhere and exchange.named_session is not None:  # a client that began to name it, or copied the session
            for place in shape.places:
                if found := [node for node in self._answers(exchange, place) if self._may_move(node)]:
                    node, ambiguous = _best(found, exchange, shape)
                    return Anchor(node, place, "exact", ambiguous)
        return None

    def _answers(self, exchange: Exchange, place: Place) -> Iterable[Node]:
        tenant = self._tenants.get(exchange.tenant)
        return () if tenant is None else tenant.answers.get(place.answer + place.before)

    def _exact(self, exchange: Exchange, place: Place) -> list[Node]:
        return [node for node in self._answers(exchange, place) if _in_scope(node, exchange)]

    def _cut_off(self, exchange: Exchange, place: Place) -> list[Node]:
        tenant = self._tenants.get(exchange.tenant)
        if tenant is None:
            return []
        found = [node for node in tenant.cut_off.get(place.before) if _in_scope(node, exchange)]
        return [node for node in found if _one_begins_the_other(node.head or "", place.head)]

    def _rewritten(self, exchange: Exchange, place: Place) -> list[Node]:
        tenant = self._tenants.get(exchange.tenant)
        if tenant is None or place.user is None:
            return []
        found = [n for n in tenant.rewritten.get(place.answer + place.user) if _in_scope(n, exchange)]
        return [node for node in found if node.tokens >= self._joining_tokens]

    def _may_move(self, node: Node) -> bool:
        return not node.session.named or node.tokens >= self._joining_tokens

    def repeated(self, exchange: Exchange, shape: Shape, *, main: bool) -> Node | None:
        """The newest turn that answered an equal request."""
        tenant = self._tenants.get(exchange.tenant)
        if tenant is None or not shape.turns:
            return None
        named = exchange.named_session is not None
        found = [
            node
            for node in tenant.requests.get(shape.conversation)
            if _in_scope(node, exchange)
            and node.main == main
            and (named or (node.client == exchange.client and (node.system == shape.system or shape.places)))
        ]
        return found[-1] if found else None


def where(parent: Node, shape: Shape) -> Anchor | None:
    """Where the answer of a known parent stands in a request."""
    for place in shape.places:
        if place.answer == parent.answer and place.before == parent.conversation:
            return Anchor(parent, place)
    for place in shape.places:
        if place.answer == parent.answer and place.user == parent.user:
            return Anchor(parent, place, "rewritten")
        if parent.head is not None and place.before == parent.conversation:
            return Anchor(parent, place, "cut off")
    return None


def _best(found: list[Node], exchange: Exchange, shape: Shape) -> tuple[Node, bool]:
    """Of equal candidates the same client's, then one that awaits its next state, the newest; and if it is a guess."""
    hints = weak_hints(exchange.session_fields)

    def rank(node: Node) -> tuple[bool, bool, bool, bool]:
        return node.client == exchange.client, node.waits, node.hints == hints, node.system == shape.system

    best = max(found, key=lambda node: (rank(node), node.order))
    return best, sum(rank(node) == rank(best) for node in found) > 1


def _in_scope(node: Node, exchange: Exchange) -> bool:
    """A named session narrows the search."""
    return exchange.named_session is None or node.session.session_id == exchange.named_session


def _one_begins_the_other(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    return shorter > 0 and one[:shorter] == other[:shorter]
