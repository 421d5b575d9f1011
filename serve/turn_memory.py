"""What the tracker remembers: turns as digests, the sessions they belong to, and where to look them up.

A turn costs about a kilobyte, however long its messages are. What it leaves out: deciding anything
(`serve/sessions.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from ulid import ULID

from serve.anchors import Digest

EQUALS = 64  # turns under one digest: a script may ask the same thing a hundred thousand times


@dataclass(slots=True, eq=False)
class Node:
    """One turn."""

    exchange_id: str
    tenant: str
    session: "Session"
    parent_id: str | None
    at: float  # Unix seconds, when the request arrived
    version: int
    main: bool
    conversation: Digest  # of the request that it answered
    system: Digest
    user: Digest | None
    answer: Digest | None  # None: nothing that could be found again
    tokens: int  # of the answer
    client: str
    hints: str  # weak session hints
    head: str | None = None  # how an answer that was cut off begins
    silent: bool = False  # the answer is a token that no person is shown
    child: Digest | None = None  # the first conversation that went on from here
    next_state: bool = False  # what followed is known
    feedback: bool = False
    ended: str | None = None  # the reason of its disposition
    late: bool = False  # something came after it was ended, and was recorded as too old
    order: int = 0  # by arrival at the tracker

    @property
    def waits(self) -> bool:
        """Whether what followed is still awaited."""
        return not self.next_state and self.ended is None


@dataclass(slots=True, eq=False)
class Session:
    """One conversation, or all that a client says belongs together."""

    tenant: str
    session_id: str
    named: bool  # by the client
    last_at: float = 0.0  # Unix seconds, last request
    turns: int = 0  # ever
    open: dict[str, Node] = field(default_factory=dict)  # turns that await what follows

    @property
    def key(self) -> tuple[str, str]:
        """Unique over tenants."""
        return self.tenant, self.session_id


class Index:
    """Digest to turns, the newest EQUALS of them; a single turn is kept without a list around it."""

    def __init__(self) -> None:
        self._found: dict[bytes, Node | list[Node]] = {}

    def add(self, key: bytes, node: Node) -> None:
        """Remember a turn under a key."""
        there = self._found.get(key)
        if there is None:
            self._found[key] = node
        elif isinstance(there, list):
            there.append(node)
            del there[:-EQUALS]
        else:
            self._found[key] = [there, node]

    def get(self, key: bytes) -> Iterable[Node]:
        """The turns under a key, oldest first."""
        there = self._found.get(key)
        if there is None:
            return ()
        return there if isinstance(there, list) else (there,)

    def remove(self, key: bytes, node: Node) -> None:
        """Forget a turn."""
        there = self._found.get(key)
        if isinstance(there, list):
            if node in there:
                there.remove(node)
            if len(there) == 1:
                self._found[key] = there[0]
        elif there is node:
            del self._found[key]

    def __len__(self) -> int:
        return len(self._found)


class Tenant:
    """All turns of one tenant; nothing is ever looked up across two."""

    def __init__(self) -> None:
        self.answers = Index()  # answer + the conversation before it
        self.rewritten = Index()  # answer + the user's last words before it
        self.cut_off = Index()  # the conversation before an answer that the client may have kept only in part
        self.requests = Index()  # the conversation that was asked about

    def add(self, node: Node) -> None:
        """Make a turn findable."""
        for index, key in self._keys(node):
            index.add(key, node)

    def remove(self, node: Node) -> None:
        """Forget a turn."""
        for index, key in self._keys(node):
            index.remove(key, node)

    def _keys(self, node: Node) -> list[tuple[Index, bytes]]:
        keys = [(self.requests, node.conversation)]
        if node.answer is not None:
            keys.append((self.answers, node.answer + node.conversation))
            if node.user is not None:
                keys.append((self.rewritten, node.answer + node.user))
        if node.head is not None:
            keys.append((self.cut_off, node.conversation))
        return keys


def derived_id(at: float, *parts: str) -> str:
    """A ULID that is the same for the same parts: what is replayed gets the id that it had."""
    milliseconds = max(0, int(at * 1000)) & (2**48 - 1)
    tail = blake2b("\x1f".join(parts).encode(), digest_size=10).digest()
    return str(ULID.from_bytes(milliseconds.to_bytes(6, "big") + tail))
