"""From prompt ids to what the client is shown: finds the engine, streams from it, ends it early, tells how it broke.

What it leaves out: HTTP and the record (`serve/gateway.py`), text (`serve/answering.py`), the engine's process.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serve.answering import Answer, Shown
from serve.api_error import ApiError, wrong
from serve.engine_client import Chunk, EngineClient, EngineDown, EngineError

log = logging.getLogger("clawrl.gateway")

LOOK_AGAIN_S = 0.25  # between looks at a policy that is not ready
ABORT_AGAIN_S = 0.5  # an abort may come before the engine knows of the request


@dataclass(frozen=True, kw_only=True)
class Where:
    """The policy as a gateway needs it."""

    url: str  # of the engine
    version: int  # of the weights that it serves
    state: str  # "ready", or what it is doing instead


class PolicyLink(Protocol):
    """The way to the policy."""

    async def where(self, fresh: bool = False) -> Where:
        """Its address; `fresh` asks again instead of remembering. OSError or TimeoutError where it can't be asked."""
        ...

    async def status(self) -> dict[str, Any]:
        """What it says of itself."""
        ...


class Generation:
    """All generations of one gateway."""

    def __init__(self, link: PolicyLink, stop_token_ids: Sequence[int], engine_wait_s: float) -> None:
        self.link = link
        self.version = 0  # the newest that we heard of
        self._stop_token_ids, self._wait_s = list(stop_token_ids), engine_wait_s
        self._engine: EngineClient | None = None

    async def stream(self, answer: Answer) -> AsyncIterator[Shown]:
        """What the client is shown, chunk by chunk. Before the first token a dead engine is waited for.

        ApiError where it broke; `answer.error` says why, `answer.ids` what there was.
        """
        until_s, attempt = time.monotonic() + self._wait_s, 0
        while True:
            try:
                async for shown in self._attempt(answer, until_s, attempt):
                    yield shown
                return
            except EngineDown as error:
                if answer.ids or answer.hung_up or time.monotonic() >= until_s:
                    raise _broke(answer, error) from error
                attempt += 1
                await asyncio.sleep(LOOK_AGAIN_S)
            except EngineError as error:
                raise _broke(answer, error) from error

    async def abort_on(self, hung_up: Callable[[], Awaitable[None]], answer: Answer) -> None:
        """Wait for `hung_up`, then end the generation."""
        await hung_up()
        answer.hung_up = True
        while True:
            if answer.stop is not None:
                with contextlib.suppress(EngineError):  # an engine that is gone has nothing to abort
                    await answer.stop()
            await asyncio.sleep(ABORT_AGAIN_S)

    async def where(self) -> Where:
        """The policy, asked now."""
        found = await self.link.where(fresh=True)
        self.version = found.version
        return found

    async def close(self) -> None:
        """Give the connections back."""
        if self._engine is not None:
            await self._engine.close()

    async def _attempt(self, answer: Answer, until_s: float, attempt: int) -> AsyncIterator[Shown]:
        request = answer.asked.request
        engine = await self._find_engine(answer, until_s, fresh=attempt > 0)
        sampling = {**request.engine, "max_new_tokens": answer.max_tokens, "stop_token_ids": self._stop_token_ids}
        rid = f"{answer.asked.exchange_id}-{attempt}"
        stream = engine.generate_stream(answer.prompt_ids, sampling, rid, top_logprobs=request.top_logprobs)
        answer.stop = functools.partial(engine.abort, rid)
        async with contextlib.aclosing(stream):
            async for shown in self._taken(answer, stream):
                yield shown

    async def _taken(self, answer: Answer, stream: AsyncIterator[Chunk]) -> AsyncIterator[Shown]:
        stopping = False
        async for chunk in stream:
            if chunk.finish == "abort" and not (answer.hung_up or stopping):
                raise EngineError(chunk.finish_detail or "the engine gave up this answer", chunk.finish_status or 503)
            shown = answer.take(chunk)
            self.version = answer.version
            yield shown
            if chunk.finish is None and not stopping and answer.done:
                stopping = True
                assert answer.stop is not None
                await answer.stop()

    async def _find_engine(self, answer: Answer, until_s: float, fresh: bool) -> EngineClient:
        """The engine's client, once the policy says it is there."""
        while True:
            state = "not reachable"
            try:
                where = await self.link.where(fresh)
                state = where.state
                if fresh or where.version > self.version:
                    self.version = where.version
                if state == "ready":
                    if self._engine is None or self._engine.url != where.url:
                        self._engine = EngineClient(where.url)
                    return self._engine
            except (OSError, TimeoutError) as error:
                log.warning("the policy does not answer: %s", error)
            if answer.hung_up:
                raise EngineDown(f"the client hung up while the model was {state}")
            if time.monotonic() >= until_s:
                raise EngineDown(f"the model is {state}: it was waited for {self._wait_s:g} s")
            fresh = True
            await asyncio.sleep(LOOK_AGAIN_S)


def _broke(answer: Answer, error: EngineError) -> ApiError:
    """The engine can't go on: how the client is told."""
    answer.error = str(error)
    if "grammar" in answer.error.lower():  # the engine says 5xx, but the same request would fail again
        return wrong("response_format", f"The engine can't keep to this response_format: {error}")
    if isinstance(error, EngineDown) or error.status >= 500:
        return ApiError(503, f"The model can't answer now: {error}", headers={"retry-after": "5"})
    return ApiError(error.status, str(error))
