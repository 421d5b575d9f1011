"""Foreign code in a thread of its own, so that an environment that blocks stops nobody else: `EpisodeThread`.

What it does: an event loop in a daemon thread; `call` runs a function or a coroutine there within a time limit.
What it leaves out: ending code that never returns. Python can't; its thread stays behind until the process ends, the
episode fails, and whatever the code holds is let go of once it does return.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from serve.environments.protocol import EnvironmentFailed
from serve.environments.tasks import TaskError


class EpisodeThread:
    """The thread of one episode. One `call` at a time."""

    def __init__(self, name: str) -> None:
        self._failed: str | None = None  # why nothing more can be called
        self._stuck = False  # something may still run there
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        finally:
            self._loop.close()

    def check(self) -> None:
        """What failed once stays failed.

        Raises:
            EnvironmentFailed: an earlier call failed.
        """
        if self._failed:
            raise EnvironmentFailed(self._failed)

    async def call(self, work: Callable[[], Any], limit_s: float, what: str) -> Any:
        """The result of `work()`, awaited there if it can be.

        Raises:
            EnvironmentFailed: it raised, or did not end in time; `what` says which part of the environment it was. Or
                an earlier call did.
        """
        self.check()
        try:
            return await self._call(work, limit_s, what)
        except (EnvironmentFailed, TaskError) as error:
            self._failed = str(error)
            raise

    async def _call(self, work: Callable[[], Any], limit_s: float, what: str) -> Any:
        outer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(guarded(work, what), self._loop))
        try:
            await asyncio.wait({outer}, timeout=limit_s)
        finally:
            if not outer.done():
                self._stuck, self._failed = True, f"{what} was broken off"
                outer.cancel()
        if self._stuck:
            raise EnvironmentFailed(f"{what} did not return within {limit_s:g} s")
        return outer.result()

    async def end(self, last: Callable[[], Any], limit_s: float) -> None:
        """Run `last()` and end the thread; of a stuck one, whenever it is free again, and nobody waits for it.

        Raises:
            EnvironmentFailed: `last` raised, or did not end in time.
        """

        def finish() -> None:
            try:
                last()
            finally:
                self._loop.stop()

        if self._stuck:
            self._loop.call_soon_threadsafe(finish)
            return
        try:
            await self._call(last, limit_s, "close")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)


async def guarded(work: Callable[[], Any | Awaitable[Any]], what: str) -> Any:
    """The boundary to foreign code: whatever it raises is a failure with a reason, also an exit."""
    try:
        result = work()
        return await result if inspect.isawaitable(result) else result
    except (EnvironmentFailed, TaskError, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise EnvironmentFailed(f"{what} failed: {type(error).__name__}: {error}") from error
