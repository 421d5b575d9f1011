"""A Ray actor that holds environments: a `LeaseTable`, its spare sandboxes, its browser.

What it leaves out: which lease goes to which worker (`pool.py`). Errors cross as plain tuples, by name (`errors.py`).
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import ray

from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.errors import error_name
from serve.environments.leases import LeaseTable
from serve.environments.protocol import Environment, EnvironmentFailed
from serve.environments.spares import Spares


@ray.remote(num_cpus=0, max_concurrency=1000)
class EnvironmentWorker:
    """Environments of some tracks, at most `capacity` at once."""

    def __init__(self, capacity: int, spares: int, repositories: Path | None = None) -> None:
        self._spares = Spares(spares)
        self._settings = EnvironmentSettings(start=self._spares.start, repositories=repositories)
        self._tracks: set[str] = set()
        self._table = LeaseTable(self._make, capacity)
        self._reaper: asyncio.Task | None = None

    def _make(self, name: str) -> Environment:
        self._tracks.add(name)
        return track(name).make(self._settings)

    async def call(self, lease_id: str, what: str, *args: Any) -> tuple[str, Any]:
        """One request of a lease: ("ok", its result), or (an error's name, its text)."""
        try:
            if what == "reset":
                name, terms, task = args
                await self._table.open(lease_id, name, terms)
                return "ok", await self._table.reset(lease_id, task)
            if what == "close":
                await self._table.close(lease_id)
                return "ok", None
            if what == "heartbeat":
                return "ok", self._table.heartbeat(lease_id)
            return "ok", await getattr(self._table, what)(lease_id, *args)
        except (EnvironmentFailed, ValueError) as error:
            return error_name(error), str(error)

    async def ping(self) -> dict[str, Any]:
        """That it lives, and what it holds."""
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._table.run())
        return {
            "pid": os.getpid(), "live": self._table.live(), "counts": self._table.counts | self._spares.counts,
            "rss_mb": round(psutil.Process().memory_info().rss / 1e6),
        }  # fmt: skip

    async def stop(self) -> None:
        """End everything it holds."""
        await self._table.close_all("its pool was stopped")
        await self._spares.close()
        if "gui" in self._tracks:
            from serve.environments.gui.browser import shared

            await shared().close()
