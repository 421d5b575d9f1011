"""A queue that is fair between owners: each gets one, in turn, however many another asked for."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First in, first out within an owner; owners in turn."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._owners.values())

    def push(self, owner: str, item: Item) -> None:
        """At the end of its owner's line; a new owner comes after those who wait."""
        self._owners.setdefault(owner, deque()).append(item)

    def pop(self) -> Item:
        """The next one. Its owner goes behind the others.

        Raises:
            IndexError: nobody waits.
        """
        if not self._owners:
            raise IndexError("nobody waits")
        owner, items = next(iter(self._owners.items()))
        item = items.popleft()
        del self._owners[owner]
        if items:
            self._owners[owner] = items
        return item

    def remove(self, owner: str, item: Item) -> None:
        """Take one out that waits no longer; nothing happens if it was handed out."""
        items = self._owners.get(owner)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._owners[owner]

    def waiting(self) -> dict[str, int]:
        """How many wait, by owner."""
        return {owner: len(items) for owner, items in self._owners.items()}
