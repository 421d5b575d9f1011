"""Speaks to one SGLang server: token ids in, token ids out, as they are sampled.

What it does: streams a generation in increments (the server must run with `--incremental-streaming-output`: its default
repeats everything with every token), aborts one, swaps weights in place, asks for health.
What it leaves out: the server's process (`serve/engine.py`), text (the caller decodes the ids).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from storage.records import VersionSpan

KEEP_ALIVE_S = 30.0  # an idle connection is used again for so long; a server must hold it for longer


class EngineError(Exception):
    """The engine answered that it can't: `status` is what an HTTP server would say."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class EngineDown(EngineError):
    """The engine can't be reached, or went away in the middle of an answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 503)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the engine sampled since the chunk before."""

    ids: tuple[int, ...]  # [k] usually one
    logprobs: tuple[float, ...]  # [k]
    top: tuple[tuple[tuple[float, int], ...], ...] | None  # [k][n] (log-probability, id), where asked for
    version: int  # of the weights that the engine serves now
    finish: str | None = None  # "stop", "length", "abort" on the last chunk
    finish_detail: str | None = None  # the engine's own words for an abort
    finish_status: int | None = None  # the HTTP status it gives an abort
    spans: tuple[VersionSpan, ...] = ()  # on the last chunk: which version sampled which tokens


def version_number(name: Any) -> int:
    """The engine calls versions by strings; what was never named is the base, 0."""
    return int(name) if str(name).isdigit() else 0


def _chunk(event: dict[str, Any]) -> Chunk:
    meta = event["meta_info"]
    top = meta.get("output_top_logprobs")
    finish = meta.get("finish_reason") or {}
    spans = (meta.get("weight_versions") or ()) if finish else ()
    return Chunk(
        ids=tuple(event["output_ids"]),
        logprobs=tuple(row[0] for row in meta.get("output_token_logprobs") or ()),
        top=None if top is None else tuple(tuple((p, i) for p, i, _ in at or ()) for at in top),
        version=version_number(meta.get("weight_version")),
        finish=finish.get("type"),
        finish_detail=finish.get("message"),
        finish_status=finish.get("status_code"),
        spans=tuple(
            VersionSpan(version=version_number(s["version"]), start=s["start"], end=s["end"])
            for s in spans
            if s["end"] > s["start"]
        ),
    )


class EngineClient:
    """One per event loop. `silence_s`: an engine that says nothing for so long counts as gone."""

    def __init__(self, url: str, *, connect_s: float = 2.0, silence_s: float = 300.0) -> None:
        self.url = url
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence_s)
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S), timeout=self._timeout
            )
        return self._session

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate_stream(
        self, input_ids: Sequence[int], sampling: dict[str, Any], rid: str, *, top_logprobs: int = 0
    ) -> AsyncIterator[Chunk]:
        """Chunks as they are sampled; the last one carries `finish` and the version spans."""
        body = {
            "rid": rid,
            "input_ids": input_ids,
            "sampling_params": sampling,
            "stream": True,
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        if top_logprobs:
            body["top_logprobs_num"] = top_logprobs
        try:
            async with self._open().post(
                self.url + "/generate", data=orjson.dumps(body), headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    raise EngineError(_message(await response.read()), response.status)
                async for event in _events(response.content):
                    if "error" in event:
                        error = event["error"]
                        raise EngineError(str(error.get("message", error)), int(error.get("code") or 500))
                    chunk = _chunk(event)
                    if chunk.finish is not None:
                        await _drain(response.content)
                        yield chunk
                        return
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineDown(f"the engine at {self.url} went away: {error or type(error).__name__}") from error
        raise EngineDown(f"the engine at {self.url} ended an answer without its last token")

    async def abort(self, rid: str) -> None:
        """Stop a generation; one that is unknown or over is no error."""
        await self._post("/abort_request", {"rid": rid}, within_s=10)

    async def health(self, within_s: float = 2.0) -> bool:
        """Whether the HTTP server answers; `alive` of the process says the rest."""
        try:
            await self.info(within_s)
        except EngineError:
            return False
        return True

    async def info(self, within_s: float = 5.0) -> dict[str, Any]:
        """Model path and weight version, as the engine sees them."""
        return await self._call("GET", "/model_info", None, within_s)

    async def load(self, path: Path | str, version: int, within_s: float = 300.0) -> None:
        """Swap the weights in place: running answers wait, go on with the new ones, and none is cut."""
        await self._post("/pause_generation", {"mode": "retract"}, within_s=60)
        try:
            body = {"model_path": str(path), "weight_version": str(version), "flush_cache": True}
            result = await self._post("/update_weights_from_disk", body, within_s=within_s)
        finally:
            await asyncio.shield(self._post("/continue_generation", {}, within_s=60))
        _took(result, f"take version {version} from {path}")

    async def open_group(self, host: str, port: int, world: int, name: str, backend: str) -> None:
        """Let the engine's ranks join a trainer's process group; the trainer joins from its side meanwhile."""
        body = {
            "master_address": host, "master_port": port, "rank_offset": 1, "world_size": world, "group_name": name,
            "backend": backend,
        }  # fmt: skip
        _took(await self._post("/init_weights_update_group", body, within_s=120), "join the trainer's group")

    async def close_group(self, name: str) -> None:
        """Let the engine's ranks leave it."""
        await self._post("/destroy_weights_update_group", {"group_name": name}, within_s=60)

    async def receive(
        self,
        group: str,
        chunks: Sequence[Sequence[tuple[str, str, Sequence[int]]]],
        send: Callable[[int], Awaitable[None]],
        version: int,
        within_s: float = 300.0,
    ) -> None:
        """Swap the weights in place with what a trainer broadcasts, chunk by chunk: (name, dtype, shape) each.

        `send` broadcasts the chunk of a number, while the engine waits for it. Raises EngineError where the engine
        did not take a chunk: its weights are then mixed, and must be loaded whole from a folder.
        """
        await self._post("/pause_generation", {"mode": "retract"}, within_s=60)
        try:
            _took(await self._post("/begin_weight_update", {}, within_s=60), "begin an update")
            try:
                for number, chunk in enumerate(chunks):
                    names, dtypes, shapes = (list(column) for column in zip(*chunk, strict=True))
                    last = number == len(chunks) - 1
                    body = {
                        "names": names, "dtypes": dtypes, "shapes": shapes, "group_name": group, "flush_cache": last,
                        "weight_version": str(version) if last else None,
                    }  # fmt: skip
                    told = self._post("/update_weights_from_distributed", body, within_s)
                    result, _ = await asyncio.gather(told, send(number))
                    _took(result, f"take chunk {number} of version {version}")
            finally:
                await asyncio.shield(self._post("/end_weight_update", {}, within_s=60))
        finally:
            await asyncio.shield(self._post("/continue_generation", {}, within_s=60))

    async def _post(self, path: str, body: dict[str, Any], within_s: float) -> dict[str, Any]:
        return await self._call("POST", path, body, within_s)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, within_s: float) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=2)
        try:
            async with self._open().request(method, self.url + path, json=body, timeout=timeout) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineDown(f"the engine at {self.url} does not answer {path}: {error or 'time is up'}") from error
        if response.status >= 400:
            raise EngineError(f"{path}: {_message(data)}", response.status)
        try:
            found = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError:
            found = {}
        return found if isinstance(found, dict) else {}


def _took(result: dict[str, Any], what: str) -> None:
    if not result.get("success"):
        raise EngineError(f"the engine did not {what}: {result.get('message')}")


def _message(data: bytes) -> str:
    try:
        error = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data[:500].decode(errors="replace")
    if isinstance(error, dict):
        error = error.get("error", error)
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:500]


async def _drain(content: aiohttp.StreamReader) -> None:
    """Read to the end, which comes at once: a connection whose answer was not read whole is not used again."""
    if not content.at_eof():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await content.read()


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to [DONE]."""
    rest = b""
    while data := await content.readany():
        rest += data
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            payload = event[6:]  # after "data: "
            if payload == b"[DONE]":
                return
            yield orjson.loads(payload)
