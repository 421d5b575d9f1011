"""Sandboxes started ahead, so that an episode need not wait for one.

What it does: `Spares.start` has the signature of `Sandbox.start` and hands out a spare of the same kind where one is
ready; a kind that was asked for is kept ready (`keep` of each, for the `KINDS` asked for last).
What it leaves out: using one twice. A sandbox serves one episode.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import Sandbox
from serve.environments.tasks import Limits

KINDS = 4
LATER_S = 0.05  # after one was asked for: its first requests, which somebody waits for, go before new spares

Kind = tuple[Limits, tuple[str, ...], tuple[str, ...]]


class Spares:
    """Of one process, and of one event loop."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._ready: OrderedDict[Kind, deque[Sandbox]] = OrderedDict()
        self._filling: asyncio.Task | None = None
        self._closed = False
        self.counts = {"spare": 0, "fresh": 0}

    async def start(self, limits: Limits, packages: Iterable[str] = (), warm: Iterable[str] = ()) -> Sandbox:
        """A sandbox of this kind: a spare one, else a fresh one.

        Raises:
            SandboxUnavailable, SandboxDied: as `Sandbox.start` does.
        """
        kind = (limits, tuple(packages), tuple(warm))
        ready = self._ready.setdefault(kind, deque())
        self._ready.move_to_end(kind)
        spare = None
        while ready and spare is None:
            spare = ready.popleft()
            if not spare.alive:
                await spare.close()
                spare = None
        self._fill()
        if spare is not None:
            self.counts["spare"] += 1
            return spare
        self.counts["fresh"] += 1
        return await Sandbox.start(*kind)

    async def close(self) -> None:
        """End all spares."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for ready in self._ready.values():
            while ready:
                await ready.popleft().close()

    def _fill(self) -> None:
        if not self._closed and self._keep > 0 and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._top_up())

    async def _top_up(self) -> None:
        """One at a time: who waits for a fresh one goes first."""
        await asyncio.sleep(LATER_S)
        with contextlib.suppress(EnvironmentFailed):  # who asks for one next is told
            while (kind := self._short()) is not None:
                made = await Sandbox.start(*kind)
                self._ready.setdefault(kind, deque()).append(made)
            while len(self._ready) > KINDS:
                _, old = self._ready.popitem(last=False)
                while old:
                    await old.popleft().close()

    def _short(self) -> Kind | None:
        for kind in list(reversed(self._ready))[:KINDS]:
            if len(self._ready[kind]) < self._keep:
                return kind
        return None
