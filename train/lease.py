"""Keeps the trainer's lease: renews it in a thread, and makes sure of it before a step and before a commit.

What it leaves out: the lease itself (`storage/lease.py`).
"""

import logging
import os
import socket
import threading
import time

from storage.objects import StoreDown
from storage.versions import Lease, LeaseLost, VersionStore

log = logging.getLogger(__name__)


class LeaseKeeper:
    """One trainer's hold on its model."""

    def __init__(self, versions: VersionStore, ttl_s: float, wait_s: float) -> None:
        self._versions, self._ttl_s = versions, ttl_s
        self._holder = f"trainer {socket.gethostname()}:{os.getpid()}"
        self._lease: Lease = versions.acquire_lease(self._holder, ttl_s, wait_s)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def fence(self) -> int:
        """The fence of the lease that is held."""
        return self._lease.fence

    def hold(self) -> None:
        """Before a step: renew, or take the lease again if nobody has it (a machine slept). LeaseHeld otherwise."""
        with self._lock:
            try:
                self._lease.renew()
            except LeaseLost:
                self._lease = self._versions.acquire_lease(self._holder, self._ttl_s)

    def confirm(self) -> None:
        """Before a commit: renew. LeaseLost if somebody else took it meanwhile."""
        with self._lock:
            self._lease.renew()

    def release(self) -> None:
        """Stop renewing, give it back."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._lease.release()

    def _renew(self) -> None:
        while not self._stop.wait(self._ttl_s / 3):
            if time.time() < self._lease.until - self._ttl_s * 0.6:
                continue  # a step renewed it just now
            try:
                self.confirm()
            except (LeaseLost, StoreDown) as fault:  # boundary: the next step finds out, and says so
                log.warning("%s", fault)
