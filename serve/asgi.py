"""The little of HTTP that the gateway needs, straight on ASGI: headers, a bounded body, answers, hang-ups.

What it leaves out: routes and what they answer (`serve/gateway.py`). No framework: a request costs a few dictionary
look-ups here, a streamed token one `send`.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from serve.api_error import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


READ_ON = 8  # times the limit


class Http:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        # the last of several equal headers counts
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.started = False  # whether the status line is out
        self.gone = False  # whether the client hung up
        self.extra: dict[str, str] = {}  # headers of every answer to it
        self._receive, self._send = receive, send

    async def body(self, limit: int) -> bytes:
        """All of it; an ApiError 413 where it is longer than `limit` bytes.

        Some of what is too long is still read, and dropped: a client that is sending reads no answer before it is done.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ConnectionResetError("the client hung up while it sent its request")
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            ended = not message.get("more_body")
            if size > limit and (ended or size > READ_ON * limit):
                raise _too_large(size, limit)
            if ended:
                return b"".join(parts)

    async def hung_up(self) -> None:
        """Returns when the client is gone. Call it after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True

    async def start(self, status: int, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """The status line and the headers of a streamed answer."""
        sent = {"content-type": content_type, **self.extra, **(headers or {})}
        self.started = True
        await self._out(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
            }
        )

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """A piece of the body; nothing happens once the client is gone."""
        await self._out({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(
        self,
        status: int,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:
        """A whole answer."""
        await self.start(status, content_type, {"content-length": str(len(data)), **(headers or {})})
        await self.write(data, more=False)

    async def _out(self, message: MutableMapping[str, Any]) -> None:
        if self.gone:
            return
        try:
            await self._send(message)
        except OSError:  # what ASGI servers raise when the client is gone
            self.gone = True


def _too_large(size: int, limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request has {size} bytes or more, but at most {limit} are taken (setting max_body_bytes).",
        code="request_too_large",
        headers={"connection": "close"},
    )
