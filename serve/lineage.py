"""Which version is the head, which is live, which is pinned: the learner's side of section 7 of the design.

The truth lies in the object store (manifests, withdrawals) and in MLflow (aliases). Nothing here is remembered that
could not be read again, so a crash between any two lines is completed by the next `settle()`.

The learner is the only one who moves `live`. People set and delete `pinned`. While a pin stands, `live` stands on it
too and learning pauses; when it goes, every later version is withdrawn: learning branches from the pinned one.
"""

import json

from storage.objects import ObjectStore
from storage.records import Version
from storage.registry import Registry
from storage.versions import VersionStore


class Lineage:
    """Blocking calls to the object store and MLflow: run in a thread. Raises StoreDown and RegistryDown."""

    def __init__(self, objects: ObjectStore, versions: VersionStore, registry: Registry, *, keep_last: int = 3) -> None:
        self.objects, self.versions, self.registry = objects, versions, registry
        self.keep_last = keep_last
        self.head: Version | None = None
        self.consumed: frozenset[str] = frozenset()  # by any committed version, withdrawn ones too (see `refresh`)
        self.lineage: list[int] = []
        self.pinned: int | None = None
        self.live: int | None = None
        self._registered: set[int] = set()
        self._pruned_at: tuple[int | None, frozenset[int]] | None = None
        self._pin_key = f"weights/{versions.model}/pinned.json"
        self._noted_pin: int | str | None = "unread"

    def refresh(self) -> None:
        """Read the head and what was consumed.

        A sample that a withdrawn version consumed is not trained again: it led to weights that somebody, or the
        probation, took back, and the same batch would lead there again.
        """
        head = self.versions.head()
        if head is None or self.head is None or head.number != self.head.number:
            self.lineage = self.versions.lineage(head.number) if head else []
            self.consumed = frozenset(s for version in self.versions.versions() for s in version.sample_ids)
            self.head = head

    def settle(self) -> None:
        """Bring MLflow in line with what is committed: idempotent, so whatever a crash left undone is done here."""
        with self.versions.one_look():
            self.refresh()
            withdrawn = self.versions.withdrawn()
            for version in self.versions.versions():
                if version.number not in self._registered:
                    self.registry.ensure_version(version, gate="passed")
                    self._registered.add(version.number)
        self._follow_pin()
        target = self.pinned if self.pinned is not None else (self.head.number if self.head else None)
        self.live = self.registry.alias("live")
        if target is not None and self.live != target and target not in withdrawn:
            self.registry.set_alias("live", target)
            self.live = target

    def take_back(self, version: int, why: str) -> None:
        """Withdraw a version and all that came of it; `live` goes back to its parent."""
        for later in reversed(self.versions.versions()):
            if version in self.versions.lineage(later.number):
                self.versions.withdraw(later.number, why)
                if later.number in self._registered:
                    self.registry.tag(later.number, "withdrawn", why)
        self.settle()

    def prune(self) -> None:
        """Delete the weights that nobody needs: all but the last ones and those with an alias."""
        head = self.head.number if self.head else None
        aliased = frozenset(self.registry.aliases().values())
        if self._pruned_at == (head, aliased):
            return  # nothing has moved since the last time
        self.versions.prune(keep={*aliased, *([] if head is None else [head])}, last=self.keep_last)
        self._pruned_at = (head, aliased)

    def _follow_pin(self) -> None:
        pinned = self.registry.alias("pinned")
        if self._noted_pin == "unread":
            noted = self.objects.get(self._pin_key) if self.objects.exists(self._pin_key) else b"null"
            self._noted_pin = json.loads(noted)
        if pinned is not None and pinned != self._noted_pin:
            self.objects.put(self._pin_key, json.dumps(pinned).encode())
            self._noted_pin = pinned
        elif pinned is None and isinstance(self._noted_pin, int):
            self._branch_from(self._noted_pin)
            self.objects.delete(self._pin_key)
            self._noted_pin = None
        self.pinned = pinned

    def _branch_from(self, number: int) -> None:
        kept = set(self.versions.lineage(number))
        for version in self.versions.versions():
            if version.number not in kept and version.number not in self.versions.withdrawn():
                why = f"learning went on from version {number}, which was pinned"
                self.versions.withdraw(version.number, why)
                self.registry.tag(version.number, "withdrawn", why)
        self.refresh()
