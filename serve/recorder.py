"""The gateway's way into the journal: written or not, within a bounded wait; and whose answer an id is.

What it leaves out: what is recorded (`serve/answering.py`, `serve/feedback.py`), the writing (`storage/journal.py`).
"""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

from serve.alarms import Alarm, Alarms
from serve.feedback import find_exchange
from storage.journal import JournalWriter
from storage.records import Exchange

REMEMBERED = 20_000  # answers whose tenant and version are known without reading the journal


class Recorder:
    """Of one gateway. Use it from one event loop."""

    def __init__(self, journal: JournalWriter, root: Path, model: str, wait_s: float) -> None:
        self.unrecorded = 0
        self._journal, self._root, self._model, self._wait_s = journal, root, model, wait_s
        self._alarms = Alarms()
        self._recent: OrderedDict[str, tuple[str, int]] = OrderedDict()  # exchange id -> tenant, version

    @property
    def healthy(self) -> bool:
        """Whether the disk takes what is written."""
        return self._journal.healthy

    async def exchange(self, exchange: Exchange) -> bool:
        """Record it; whether it is written."""
        self._recent[exchange.exchange_id] = (exchange.tenant, exchange.version)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return await self.append("exchange", exchange, exchange.version)

    async def append(self, kind: str, record: Any, version: int) -> bool:
        """Record anything; whether it is written."""
        future = asyncio.wrap_future(self._journal.append(kind, record, version))
        try:
            written = await asyncio.wait_for(future, self._wait_s)
        except TimeoutError:
            written = False
        if not written:
            self.unrecorded += 1
            self._alarms.raise_(
                "journal",
                f"{self._root} does not take records: {self.unrecorded} of this run were answered without one. Serving "
                "goes on; they wait in memory and are written when it does. Free some space there.",
            )
        return written

    def alarms(self) -> list[Alarm]:
        """What is wrong with the disk now."""
        if self.healthy:
            self._alarms.clear("journal")
        return self._alarms.active()

    async def whose(self, exchange_id: str) -> tuple[str, int] | None:
        """Tenant and version of an answer; None where it is not in the open journal (any more)."""
        known = self._recent.get(exchange_id)
        if known is None:
            known = await asyncio.to_thread(find_exchange, self._root, self._model, exchange_id)
        return known

    def forget(self) -> None:
        """As after a restart."""
        self._recent.clear()

    async def close(self) -> None:
        """Flush."""
        await asyncio.to_thread(self._journal.close)
