"""The gateway: OpenAI's chat API in front of the policy, and the record of every exchange.

What it does: checks who asks and what, renders the prompt, streams the engine's tokens on as they come, and journals
the Exchange; only an answer's last frame waits for the journal. Takes feedback, and says how everything is.
What it leaves out: learning (the learner tails the journal), sessions (its tracker), weights (`serve/policy.py`).
How to run it: `serve/app.py` puts `Gateway` on Ray Serve; `Gateway(...)` itself is an ASGI app without Ray.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from serve.answering import Answer, Asked, Shown, refused
from serve.api_error import ApiError
from serve.asgi import Http, Receive, Scope, Send
from serve.auth import Keys
from serve.feedback import feedback_of
from serve.generation import Generation, PolicyLink, Where
from serve.openai_answers import DONE, ChunkWriter, completion, usage
from serve.openai_api import parse_chat, parse_object
from serve.recorder import Recorder
from serve.rendering import Renderer
from serve.session_fields import session_fields
from storage.journal import JournalWriter
from storage.records import FinishReason, new_id

__all__ = ["Gateway", "GatewaySettings", "PolicyLink", "Where"]

log = logging.getLogger("clawrl.gateway")

SSE = "text/event-stream; charset=utf-8"
CUT_S = 3.0  # at shutdown, to tell those whose answers did not end in time
THREAD_BYTES = 32_768  # a longer request is rendered in a thread, so that other streams go on


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """How to serve one model."""

    model: str
    model_dir: str  # tokenizer, template and config; the weights there are not read
    journal_root: str
    api_keys: dict[str, str]  # key -> tenant; with none everyone is `default`
    template: str | None = None  # chat template: None chooses by probing
    max_body_bytes: int = 8 << 20
    max_in_flight: int = 256  # more requests are told to come back (429)
    engine_wait_s: float = 20.0  # how long a request waits for an engine that starts or restarts (then 503)
    record_wait_s: float = 5.0  # how long a last frame waits for the journal
    drain_s: float = 20.0  # at shutdown, for answers under way
    listen_host: str = "127.0.0.1"
    listen_port: int | None = None  # None: only through Ray Serve's own proxy

    def __repr__(self) -> str:  # keys never reach a log
        return f"GatewaySettings(model={self.model!r}, model_dir={self.model_dir!r}, {len(self.api_keys)} keys)"


StatusPart = Callable[[], Awaitable[dict[str, Any]]]
Route = Callable[[Http, str], Awaitable[None]]


class Gateway:
    """An ASGI app. One per process; use it from one event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        link: PolicyLink,
        journal: JournalWriter,
        renderer: Renderer,
        *,
        status_parts: dict[str, StatusPart] | None = None,
    ) -> None:
        self.settings, self.link, self.renderer = settings, link, renderer
        self.generation = Generation(link, renderer.eos_ids, settings.engine_wait_s)
        self.recorder = Recorder(journal, Path(settings.journal_root), settings.model, settings.record_wait_s)
        self.in_flight = 0
        self._keys = Keys(settings.api_keys)
        self._status_parts = status_parts or {}
        self._closing = self._cutting = False
        self._counts = {"requests": 0, "tokens": 0, "aborted": 0, "errors": 0}
        self._noted: set[str] = set()  # unknown fields that the log has seen
        self._started_at = time.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[tuple[str, str], Route] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/feedback"): self._feedback,
            ("GET", "/v1/models"): self._models,
            ("GET", f"/v1/models/{settings.model}"): self._one_model,
            ("GET", "/admin/status"): self._status,
        }

    @property
    def version(self) -> int:
        """The newest that we heard of."""
        return self.generation.version

    # HTTP

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. It runs as a task of its own: a server that cancels us only hangs up on the client."""
        if scope["type"] != "http":
            return
        task = asyncio.create_task(self._serve(Http(scope, receive, send)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _serve(self, http: Http) -> None:
        http.extra["x-weight-version"] = str(self.version)
        try:
            await self._route(http)
        except ApiError as error:
            await self._refuse(http, error)
        except ConnectionResetError:
            pass  # the client is gone: there is nobody to tell
        except Exception:  # the boundary of a request: a bug in one must not end the others
            log.exception("%s %s failed", http.method, http.path)
            self._counts["errors"] += 1
            await self._refuse(http, ApiError(500, "The server failed at this request; its log says why."))

    async def _route(self, http: Http) -> None:
        if http.path == "/healthz":
            if http.method not in ("GET", "HEAD"):
                raise ApiError(405, "/healthz takes GET only.", headers={"allow": "GET"})
            return await self._health(http)
        handler = self._routes.get((http.method, http.path))
        if handler is None:
            methods = [method for method, path in self._routes if path == http.path]
            if methods:
                raise ApiError(405, f"{http.path} takes {', '.join(methods)} only.", headers={"allow": methods[0]})
            if http.path.startswith("/v1/models/"):
                raise self._no_model(http.path.removeprefix("/v1/models/"))
            raise ApiError(404, f"There is nothing at {http.path}.", code="not_found")
        await handler(http, self._keys.tenant(http.headers))

    async def _refuse(self, http: Http, error: ApiError) -> None:
        if http.started:
            await http.write(b"data: " + error.body() + b"\n\n", more=False)
            return
        http.extra["x-weight-version"] = str(self.version)
        await http.answer(error.status, error.body(), error.headers)

    # Chat

    async def _chat(self, http: Http, tenant: str) -> None:
        started_s, received_at = time.monotonic(), time.time()
        data = await http.body(self.settings.max_body_bytes)
        body = parse_object(data)
        named = session_fields(http.headers, body)
        request = parse_chat(body, self.renderer.vocab_size)
        if request.model != self.settings.model:
            raise self._no_model(request.model)
        self._note(request.ignored)
        if self._closing:
            raise ApiError(503, "The server is shutting down.", headers={"retry-after": "10"})
        if self.in_flight >= self.settings.max_in_flight:
            raise ApiError(
                429,
                f"{self.in_flight} requests are under way, the most that are taken (setting max_in_flight).",
                code="rate_limit_exceeded",
                headers={"retry-after": "1"},
            )
        asked = Asked(
            exchange_id=new_id(),
            tenant=tenant,
            request=request,
            received_at=received_at,
            started_s=started_s,
            client=http.headers.get("user-agent", "")[:200],
            named_session=named.named_session,
            session_fields=named.fields,
            turn_type=named.turn_type,
            session_done=named.session_done,
            model=self.settings.model,
        )
        http.extra["x-exchange-id"] = asked.exchange_id
        self.in_flight += 1
        self._counts["requests"] += 1
        try:
            await self._answer(http, asked, len(data))
        finally:
            self.in_flight -= 1

    async def _answer(self, http: Http, asked: Asked, size: int) -> None:
        prompt_ids, room = await self._prompt(http, asked, size)
        wanted = asked.request.max_tokens
        answer = Answer(asked, self.renderer, prompt_ids, room if wanted is None else min(wanted, room))
        answer.version = self.version
        watch = asyncio.create_task(self.generation.abort_on(http.hung_up, answer))
        try:
            if asked.request.stream:
                await self._stream(http, answer)
            else:
                await self._whole(http, answer)
        finally:
            watch.cancel()
            self._counts["tokens"] += len(answer.ids)
            self._counts["aborted"] += answer.finish_reason == "abort"
            self._counts["errors"] += answer.error is not None

    async def _prompt(self, http: Http, asked: Asked, size: int) -> tuple[tuple[int, ...], int]:
        """The prompt's ids, and how many tokens of the window are left for the answer."""
        request = asked.request
        render = (request.messages, request.tools, request.tool_choice)
        try:
            if size > THREAD_BYTES:
                ids = await asyncio.to_thread(self.renderer.prompt_ids, *render)
            else:
                ids = self.renderer.prompt_ids(*render)
        except ValueError as error:
            await self._record_refusal(http, asked, str(error), "refused")
            raise ApiError(400, str(error), param="messages") from error
        room = self.renderer.window - len(ids) - 1  # the engine keeps one position to itself
        if room < 1:
            why = (
                f"The prompt has {len(ids)} tokens, but the model's window is {self.renderer.window} tokens, "
                "prompt and answer together. Shorten the messages or the tools."
            )
            await self._record_refusal(http, asked, why, "refused", ids)
            raise ApiError(400, why, param="messages", code="context_length_exceeded")
        return ids, room

    async def _stream(self, http: Http, answer: Answer) -> None:
        asked, request = answer.asked, answer.asked.request
        writer = ChunkWriter(asked.id, int(asked.received_at), asked.model, request.include_usage)
        try:
            async for shown in self._shown(answer):
                events = _events(writer, shown)
                if not http.started:
                    http.extra["x-weight-version"] = str(answer.version)
                    headers = {"cache-control": "no-cache", "x-recorded": _yes(self.recorder.healthy)}
                    await http.start(200, SSE, headers)
                    events = writer.role() + events
                if events:
                    await http.write(events)
        except ApiError as error:
            recorded = await self._record_broken(http, answer)
            if not http.started:
                raise
            await http.write(b"data: " + error.body() + b"\n\n" + _mark(recorded), more=False)
            return
        ended = answer.end()
        if ended.deltas:
            await http.write(_events(writer, ended))
        recorded = await self.recorder.exchange(answer.exchange())  # the last frame waits for it, nothing else does
        last = writer.last(answer.finish_reason, None if ended.deltas else ended.logprobs)
        if request.include_usage:
            last += writer.usage(usage(len(answer.prompt_ids), len(answer.ids)))
        await http.write(last + _mark(recorded) + DONE, more=False)

    async def _shown(self, answer: Answer) -> AsyncIterator[Shown]:
        async with contextlib.aclosing(self.generation.stream(answer)) as parts:
            async for shown in parts:
                if self._cutting:
                    answer.error = "the server was shut down"
                    raise ApiError(503, "The server is shutting down: ask again later.", headers={"retry-after": "30"})
                yield shown

    async def _whole(self, http: Http, answer: Answer) -> None:
        try:
            async for _ in self._shown(answer):
                pass
        except ApiError:
            await self._record_broken(http, answer)
            raise
        answer.end()
        asked = answer.asked
        recorded = await self.recorder.exchange(answer.exchange())
        http.extra["x-weight-version"] = str(answer.version)
        data = completion(
            id=asked.id,
            created=int(asked.received_at),
            model=asked.model,
            message=answer.api_message,
            finish_reason=answer.finish_reason,
            counts=usage(len(answer.prompt_ids), len(answer.ids)),
            logprobs=answer.shown_logprobs if asked.request.logprobs else None,
        )
        await http.answer(200, data, {"x-recorded": _yes(recorded)})

    async def _record_broken(self, http: Http, answer: Answer) -> bool:
        """What there was of an answer that broke off, or that there was none."""
        if answer.ids:
            recorded = await self.recorder.exchange(answer.exchange())
        else:
            why = answer.error or "no answer"
            exchange = refused(answer.asked, self.version, why, "error", answer.prompt_ids)
            recorded = await self.recorder.exchange(exchange)
        http.extra["x-recorded"] = _yes(recorded)
        return recorded

    async def _record_refusal(
        self, http: Http, asked: Asked, why: str, finish: FinishReason, prompt_ids: tuple[int, ...] = ()
    ) -> None:
        recorded = await self.recorder.exchange(refused(asked, self.version, why, finish, prompt_ids))
        http.extra["x-recorded"] = _yes(recorded)

    def _note(self, ignored: tuple[str, ...]) -> None:
        for name in set(ignored) - self._noted:
            if len(self._noted) < 1000:  # a client can make up any number of names
                self._noted.add(name)
                log.warning("requests carry the field %.100r, which means nothing here: it is ignored", name)

    # The other routes

    async def _feedback(self, http: Http, tenant: str) -> None:
        body = parse_object(await http.body(self.settings.max_body_bytes))
        state = feedback_of(body)
        known = await self.recorder.whose(state.exchange_id)
        if known is None or known[0] != tenant:
            raise ApiError(404, f"There is no open answer {state.exchange_id!r}.", param="id", code="not_found")
        http.extra["x-exchange-id"] = state.exchange_id
        recorded = await self.recorder.append("feedback", state, known[1])
        data = {"object": "feedback", "id": state.next_state_id, "exchange_id": state.exchange_id}
        data |= {"score": state.score, "recorded": recorded}
        await http.answer(200, orjson.dumps(data), {"x-recorded": _yes(recorded)})

    def _no_model(self, name: str) -> ApiError:
        message = f"The model {name!r} is not here; there is {self.settings.model!r}."
        return ApiError(404, message, param="model", code="model_not_found")

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.settings.model,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "openclaw-rl",
            "context_window": self.renderer.window,
            "weight_version": self.version,
        }

    async def _models(self, http: Http, _tenant: str) -> None:
        await http.answer(200, orjson.dumps({"object": "list", "data": [self._model()]}))

    async def _one_model(self, http: Http, _tenant: str) -> None:
        await http.answer(200, orjson.dumps(self._model()))

    async def _health(self, http: Http) -> None:
        try:
            state = (await self.generation.where()).state
        except (OSError, TimeoutError):
            state = "not reachable"
        http.extra["x-weight-version"] = str(self.version)
        ready = state == "ready" and not self._closing
        data = {"status": "ok" if ready else "unavailable", "policy": state, "journal": self.recorder.healthy}
        await http.answer(200 if ready else 503, orjson.dumps(data), None if ready else {"retry-after": "2"})

    async def _status(self, http: Http, _tenant: str) -> None:
        parts = {"policy": self.link.status, **self._status_parts}
        found = await asyncio.gather(*(_part(ask) for ask in parts.values()))
        data = {"model": self.settings.model, "gateway": self.status(), **dict(zip(parts, found, strict=True))}
        self.generation.version = (data["policy"] or {}).get("version") or self.version
        http.extra["x-weight-version"] = str(self.version)
        await http.answer(200, orjson.dumps(data, default=str))

    def status(self) -> dict[str, Any]:
        """What the gateway says of itself."""
        return {
            **self._counts,
            "unrecorded": self.recorder.unrecorded,
            "pid": os.getpid(),
            "in_flight": self.in_flight,
            "journal_healthy": self.recorder.healthy,
            "alarms": [asdict(alarm) for alarm in self.recorder.alarms()],
            "started_at": self._started_at,
            "template": self.renderer.probe().as_dict(),
        }

    async def close(self) -> None:
        """Take nothing new, let answers end for `drain_s`, tell the rest, flush the journal."""
        self._closing = True
        for patience_s in (self.settings.drain_s, CUT_S):
            until_s = time.monotonic() + patience_s
            while self.in_flight and time.monotonic() < until_s:
                await asyncio.sleep(0.05)
            self._cutting = True
        for task in list(self._tasks):
            task.cancel()
        await self.recorder.close()
        await self.generation.close()


async def _part(ask: StatusPart) -> dict[str, Any] | None:
    try:
        return await asyncio.wait_for(ask(), 5)
    except Exception as error:  # the boundary of a status: a part that can't answer must not hide the others
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _events(writer: ChunkWriter, shown: Shown) -> bytes:
    if not shown.deltas:
        return b""
    *first, last = shown.deltas
    return b"".join([*(writer.delta(delta) for delta in first), writer.delta(last, shown.logprobs)])


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _mark(recorded: bool) -> bytes:
    """A comment that only those see who look: the headers are out already."""
    return b"" if recorded else b": x-recorded: false\n\n"
