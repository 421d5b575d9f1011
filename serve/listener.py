"""A gateway replica's own ear: uvicorn on a loopback port, inside the replica, without Serve's proxy in between.

What it does: listens on a fixed port that survives restarts of the replica and may be shared by several replicas
(SO_REUSEPORT), on the event loop of its caller. Why: each streamed token through Serve's Python proxy costs two more
hops between processes. `front` is the way in through that proxy all the same.
What it leaves out: TLS (a proxy in front, or Serve's own), other hosts.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from serve.asgi import Receive, Scope, Send

ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]


_behind: ASGI | None = None  # the app of this process


def put_behind_proxy(app: ASGI) -> None:
    """From now on, what comes through Serve's proxy goes to this app."""
    global _behind
    assert _behind is None, "one gateway a process"
    _behind = app


async def front(scope: Scope, receive: Receive, send: Send) -> None:
    """What Serve's proxy speaks to: a function of an importable module, so that replicas get it by name."""
    if scope["type"] != "lifespan":
        assert _behind is not None
        await _behind(scope, receive, send)
        return
    while True:
        step = (await receive())["type"]
        await send({"type": f"{step}.complete"})
        if step == "lifespan.shutdown":
            return


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the replica's process, not to its server."""
        yield


class Listener:
    """One socket and its server."""

    def __init__(self, app: ASGI, host: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            raise ValueError(f"the gateway can't listen on {host}:{port}: {error.strerror}; choose another") from error
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=600,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.01)

    async def stop(self, within_s: float) -> None:
        """Accept nothing more, let what runs end, close."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), within_s)
            self._server.force_exit = True
            self._task.cancel()
        self._socket.close()
