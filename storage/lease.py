"""A lease in the object store: one holder at a time, each with a higher fence than the one before.

What it does: take, renew and release by conditional writes; a holder that lost it is told so at its next renewal.
What it leaves out: stopping a holder that sleeps through its time: whoever writes on its behalf compares fences
(`VersionStore.commit`). Times are the holders' own clocks: keep them within a few seconds of each other.
"""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from storage.arrow import dumps
from storage.objects import AlreadyThere, Changed, NotThere, ObjectStore
from storage.records import new_id


class LeaseHeld(ValueError):
    """Somebody else holds the lease."""


class LeaseLost(ValueError):
    """The lease is no longer ours."""


@dataclass(slots=True)
class Lease:
    """A lease that we hold. Renew it at a third of its `ttl_s`."""

    objects: ObjectStore
    key: str
    holder: str
    fence: int  # higher than that of every holder before
    ttl_s: float
    until: float  # Unix seconds
    nonce: str  # ours alone, for when an answer is lost
    etag: str

    def renew(self) -> None:
        """Hold it for another `ttl_s`. LeaseLost, saying to whom, where somebody took it."""
        self._write(time.time() + self.ttl_s)

    def release(self) -> None:
        """Give it back; the fence stays used. Nothing happens where it was lost already."""
        try:
            self._write(0.0)
        except LeaseLost:
            return

    def _write(self, until: float) -> None:
        state = {
            "holder": self.holder,
            "fence": self.fence,
            "until": until,
            "ttl_s": self.ttl_s,
            "nonce": self.nonce,
            "written": new_id(),
        }
        try:
            self.etag = self.objects.put(self.key, dumps(state), if_match=self.etag)
        except Changed as fault:
            raise LeaseLost(f"the lease of {self.holder} was lost: {_read(self.objects, self.key)[0]}") from fault
        self.until = until


def take_lease(objects: ObjectStore, key: str, holder: str, ttl_s: float, wait_s: float = 0.0) -> Lease:
    """Take the lease if it is free, released or past its time, waiting for that up to `wait_s`."""
    give_up_at = time.time() + wait_s
    while True:
        text, state, etag = _read(objects, key)
        now = time.time()
        if state is None or now >= state["until"]:
            lease = _try(objects, key, holder, ttl_s, state, etag)
            if lease is not None:
                return lease
            continue  # somebody was faster: look who
        if now >= give_up_at:
            raise LeaseHeld(f"{text}: stop that one, or wait")
        time.sleep(min(0.5, state["until"] - now, max(give_up_at - now, 0.01)))


def _try(
    objects: ObjectStore, key: str, holder: str, ttl_s: float, before: dict[str, Any] | None, etag: str | None
) -> Lease | None:
    fence = before["fence"] + 1 if before else 1
    nonce, until = new_id(), time.time() + ttl_s
    state = {"holder": holder, "fence": fence, "until": until, "ttl_s": ttl_s, "nonce": nonce}
    try:
        etag = objects.put(key, dumps(state), if_none_match=etag is None, if_match=etag)
    except (AlreadyThere, Changed):
        return None
    return Lease(objects, key, holder, fence, ttl_s, until, nonce, etag)


def _read(objects: ObjectStore, key: str) -> tuple[str, dict[str, Any] | None, str | None]:
    """The lease in words, as it stands, and its etag."""
    try:
        data, etag = objects.get_with_etag(key)
    except NotThere:
        return "nobody holds it", None, None
    state = json.loads(data)
    until = datetime.fromtimestamp(state["until"], UTC).isoformat(timespec="seconds")
    return f"{state['holder']} holds it until {until} with fence {state['fence']}", state, etag
