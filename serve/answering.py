"""One answer in the making: the engine's ids become text, reasoning and tool calls, and in the end an Exchange.

What it does: keeps exactly what the engine sampled (ids, log-probabilities, which version sampled what), and what of it
the client was shown. What it leaves out: HTTP and the order of things (`serve/gateway.py`).
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from serve.engine_client import Chunk
from serve.openai_api import ChatRequest
from serve.parsing import AnswerParser, Delta
from serve.rendering import Renderer
from storage.records import Exchange, FinishReason, Kind, VersionSpan


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that was accepted: what of an Exchange is known before there is an answer."""

    exchange_id: str
    tenant: str
    request: ChatRequest
    received_at: float  # Unix seconds
    started_s: float  # monotonic
    client: str
    named_session: str | None = None
    session_fields: dict[str, Any] | None = None
    turn_type: Kind | None = None
    session_done: bool = False
    model: str = ""  # without version

    @property
    def id(self) -> str:
        """The answer's id in the API."""
        return f"chatcmpl-{self.exchange_id}"


@dataclass(slots=True)
class Shown:
    """What one chunk gives the client: deltas in OpenAI's shape, and log-probabilities where asked for."""

    deltas: list[dict[str, Any]]
    logprobs: list[dict[str, Any]] | None


@dataclass
class Answer:
    """Grows with each chunk."""

    asked: Asked
    renderer: Renderer
    prompt_ids: tuple[int, ...]
    max_tokens: int  # what the engine is told
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    shown_logprobs: list[dict[str, Any]] = field(default_factory=list)
    first_token_s: float | None = None
    last_token_s: float | None = None
    engine_finish: str | None = None
    error: str | None = None  # why it broke off
    hung_up: bool = False
    version: int = 0
    stop: Callable[[], Awaitable[None]] | None = None  # ends the generation at the engine, once there is one

    def __post_init__(self) -> None:
        request = self.asked.request
        self._decoder = self.renderer.stream_decoder()
        self.parser = AnswerParser(
            self.renderer.format,
            request.tools,
            request.tool_choice,
            request.stop,
            prefix=self.renderer.forced_prefix(request.tools, request.tool_choice),
            parallel=request.parallel,
        )
        self._spans: tuple[VersionSpan, ...] = ()
        self._seen: list[VersionSpan] = []  # from the chunks: what there is when the engine dies
        self._message: dict[str, Any] | None = None
        self._waiting: list[dict[str, Any]] = []  # log-probabilities of tokens whose text is held back

    @property
    def done(self) -> bool:
        """Whether nothing that comes can change what is shown."""
        return self.parser.done

    def take(self, chunk: Chunk) -> Shown:
        """The next chunk of the engine."""
        self.version = chunk.version
        if chunk.finish is not None:
            self.engine_finish, self._spans = chunk.finish, chunk.spans
        if self.done:  # sampled while the abort was under way
            return Shown([], None)
        count = min(len(chunk.ids), len(chunk.logprobs))
        ids = chunk.ids[:count]
        if ids:
            self._count(chunk.version, count)
            self.ids += ids
            self.logprobs += chunk.logprobs[:count]
        deltas = self.parser.push(self._decoder.push(ids)) if ids else []
        if self.asked.request.logprobs:
            self._waiting += self._describe(chunk, count)
        return self._shown(deltas)

    def end(self) -> Shown:
        """What was held back, once nothing more comes."""
        deltas = self.parser.push(self._decoder.finish()) + self.parser.end()
        return self._shown(deltas, last=True)

    def _count(self, version: int, count: int) -> None:
        now = time.monotonic() - self.asked.started_s
        self.first_token_s = now if self.first_token_s is None else self.first_token_s
        self.last_token_s = now
        end = len(self.ids) + count
        if self._seen and self._seen[-1].version == version:
            self._seen[-1] = VersionSpan(version=version, start=self._seen[-1].start, end=end)
        else:
            self._seen.append(VersionSpan(version=version, start=len(self.ids), end=end))

    def _shown(self, deltas: list[Delta], last: bool = False) -> Shown:
        found = [_openai(delta) for delta in deltas]
        if not self._waiting or not (found or last):
            return Shown(found, None)
        logprobs, self._waiting = self._waiting, []
        self.shown_logprobs += logprobs
        return Shown(found, logprobs)

    def _describe(self, chunk: Chunk, count: int) -> list[dict[str, Any]]:
        rows = []
        for at in range(count):
            row = self._token(chunk.ids[at], chunk.logprobs[at])
            top = chunk.top[at] if chunk.top is not None and at < len(chunk.top) else ()
            row["top_logprobs"] = [self._token(id, logprob) for logprob, id in top]
            rows.append(row)
        return rows

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        text = self.renderer.token_text(id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    @property
    def finish_reason(self) -> FinishReason:
        """As the client and the Exchange name it."""
        if self.error is not None:
            return "error"
        if self.done:
            return self.parser.finish_reason
        if self.hung_up or self.engine_finish == "abort":
            return "abort"
        return "length" if self.engine_finish == "length" else self.parser.finish_reason

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message, as recorded."""
        if self._message is None:
            self._message = self.parser.finish()
        return self._message

    @property
    def api_message(self) -> dict[str, Any]:
        """The assistant message, as the API gives it."""
        found = dict(self.message)
        if "reasoning" in found:
            found["reasoning_content"] = found.pop("reasoning")
        return found

    @property
    def spans(self) -> tuple[VersionSpan, ...]:
        """Which version sampled which of the ids that are kept."""
        length = len(self.ids)
        covered = self._spans if self._spans and self._spans[-1].end >= length else tuple(self._seen)
        return tuple(
            VersionSpan(version=span.version, start=span.start, end=min(span.end, length))
            for span in covered
            if span.start < length
        )

    def exchange(self) -> Exchange:
        """The record of it."""
        spans, request = self.spans, self.asked.request
        sampling = {**request.sampling, "max_tokens": self.max_tokens}
        if request.tools and request.tool_choice != "auto":
            sampling["tool_choice"] = request.tool_choice
        elapsed = time.monotonic() - self.asked.started_s
        return Exchange(
            **_known(self.asked),
            version=spans[-1].version if spans else self.version,
            sampling=sampling,
            prompt_ids=self.prompt_ids,
            response_ids=tuple(self.ids),
            response_logprobs=tuple(self.logprobs),
            version_spans=spans,
            answer=self.message,
            finish_reason=self.finish_reason,
            latency_s=self.last_token_s if self.last_token_s is not None else elapsed,
            first_token_s=self.first_token_s,
            error=self.error,
        )


def refused(asked: Asked, version: int, why: str, finish: FinishReason, prompt_ids: tuple[int, ...] = ()) -> Exchange:
    """The record of a request that got no answer: it still carries the next state of the answer before."""
    return Exchange(
        **_known(asked),
        version=version,
        sampling=asked.request.sampling,
        prompt_ids=prompt_ids,
        response_ids=(),
        response_logprobs=(),
        version_spans=(),
        answer=None,
        finish_reason=finish,
        latency_s=time.monotonic() - asked.started_s,
        first_token_s=None,
        error=why,
    )


def _known(asked: Asked) -> dict[str, Any]:
    return {
        "exchange_id": asked.exchange_id,
        "tenant": asked.tenant,
        "model": asked.model,
        "received_at": asked.received_at,
        "messages": asked.request.messages,
        "tools": asked.request.tools,
        "client": asked.client,
        "named_session": asked.named_session,
        "session_fields": asked.session_fields,
        "turn_type": asked.turn_type,
        "session_done": asked.session_done,
    }


def _openai(delta: Delta) -> dict[str, Any]:
    if delta.content is not None:
        return {"content": delta.content}
    if delta.reasoning is not None:
        return {"reasoning_content": delta.reasoning}
    piece = delta.tool_call
    assert piece is not None
    if piece.id is not None:
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"tool_calls": [{"index": piece.index, "id": piece.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.arguments}}]}
