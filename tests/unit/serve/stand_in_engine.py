"""A stand-in for SGLang's HTTP server: says given ids one by one, and can stall, refuse, break off or be aborted.

The real one is in `tests/contract/test_sglang.py`; here it is about what the gateway does when the engine misbehaves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from serve.asgi import Http, Receive, Scope, Send
from serve.gateway import Where
from serve.listener import Listener


class StandInEngine:
    """Set what it does, then send requests."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.end: dict[str, Any] = {"type": "stop", "matched": 2}
        self.delay_s = 0.0  # before each token
        self.die_after: int | None = None  # tokens, then the connection breaks
        self.error: str | None = None  # an error event in place of tokens
        self.abort_with: dict[str, Any] | None = None  # an abort of the engine's own after the first token
        self.swap_at: int | None = None  # the token from which version 1 speaks
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.sent = 0
        self.gate: asyncio.Event | None = None  # waits for it before the last token
        self._listener = Listener(self, "127.0.0.1", 0)

    async def start(self) -> "StandInEngine":
        await self._listener.start()
        return self

    async def stop(self) -> None:
        await self._listener.stop(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Http(scope, receive, send)
        body = orjson.loads(await http.body(1 << 24) or b"{}")
        if http.path == "/abort_request":
            self.aborted.append(body["rid"])
            await http.answer(200, b"{}")
        elif http.path == "/generate":
            self.requests.append(body)
            await self._generate(http, body)
        else:
            await http.answer(200, b"{}")

    def _versions(self, count: int) -> list[dict[str, Any]]:
        at = count if self.swap_at is None else min(self.swap_at, count)
        spans = [{"version": "0", "start": 0, "end": at}, {"version": "1", "start": at, "end": count}]
        return [span for span in spans if span["end"] > span["start"]]

    def _event(self, ids: Sequence[int], count: int, finish: dict[str, Any] | None) -> bytes:
        version = "1" if self.swap_at is not None and count > self.swap_at else "0"
        meta: dict[str, Any] = {"finish_reason": finish, "weight_version": version, "completion_tokens": count}
        meta["output_token_logprobs"] = [[-0.25, id, None] for id in ids]
        meta["output_top_logprobs"] = [[[-0.25, id, None]] for id in ids]
        if finish is not None:
            meta["weight_versions"] = self._versions(count)
        return b"data: " + orjson.dumps({"text": "", "output_ids": list(ids), "meta_info": meta}) + b"\n\n"

    async def _generate(self, http: Http, body: dict[str, Any]) -> None:
        await http.start(200, "text/event-stream")
        if self.error is not None:
            await http.write(b"data: " + orjson.dumps({"error": {"message": self.error, "code": 400}}) + b"\n\n")
            return
        limit = body["sampling_params"]["max_new_tokens"]
        ids = self.ids[:limit]
        for at, id in enumerate(ids):
            await asyncio.sleep(self.delay_s)
            if at == self.die_after:
                raise RuntimeError("the stand-in dies here")
            if body["rid"] in self.aborted:
                await http.write(self._event([], at, {"type": "abort", "message": "Aborted"}), more=False)
                return
            if self.abort_with is not None and at == 1:
                await http.write(self._event([], at, self.abort_with), more=False)
                return
            last = at + 1 == len(ids)
            if last and self.gate is not None:
                await self.gate.wait()
            finish = None if not last else {"type": "length"} if len(self.ids) > limit else self.end
            self.sent += 1
            await http.write(self._event([id], at + 1, finish))
        await http.write(b"data: [DONE]\n\n", more=False)


class StandInLink:
    """The policy's address without a policy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.version = 0
        self.state = "ready"

    async def where(self, fresh: bool = False) -> Where:
        return Where(url=self.url, version=self.version, state=self.state)

    async def status(self) -> dict[str, Any]:
        return {"state": self.state, "version": self.version, "alarms": []}
