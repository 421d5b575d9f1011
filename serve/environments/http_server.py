"""Environments over HTTP: the same protocol for any language, with a lease and a key.

What it does: an aiohttp application over a `LeaseTable` (environments of this process): lease, reset, step, evaluate,
heartbeat, close; `python -m serve.environments serve` starts it on loopback.
What it leaves out: the client (`http_client.py`). Whoever brings an environment of his own in another language serves
these same addresses; README.md lists them with their JSON.

Every request but `/healthz` needs `Authorization: Bearer <key>`. Errors are `{"error": {"type", "message"}}`.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from serve.environments.errors import error_name
from serve.environments.leases import LeaseLost, LeaseTable, LeaseTerms, NoRoom
from serve.environments.protocol import TRACKS, Action, Environment, EnvironmentFailed
from serve.environments.sandbox import SandboxUnavailable
from serve.environments.tasks import Task, TaskError
from storage.records import new_id

STATUS: dict[type[Exception], int] = {
    LeaseLost: 410, SandboxUnavailable: 503, EnvironmentFailed: 502, TaskError: 400, ValueError: 400
}  # fmt: skip
MAX_BODY = 64 << 20
# of a task's limits: whoever has the key may ask for this much of each of the places
MOST = {
    "steps": 1000, "step_s": 3600, "episode_s": 86400, "memory_mb": 8192, "processes": 1024, "disk_mb": 2048,
    "output_chars": 1_000_000,
}  # fmt: skip
TABLE = web.AppKey("table", LeaseTable)
CAPACITY = web.AppKey("capacity", int)


def make_app(
    make: Callable[[str], Environment], key: str, capacity: int = 8, tracks: tuple[str, ...] = TRACKS
) -> web.Application:
    """The application. `make` gives a fresh environment of a track.

    Raises:
        ValueError: a key of less than 16 characters.
    """
    if len(key) < 16:
        raise ValueError(f"the key has {len(key)} characters: at least 16 are needed")
    app = web.Application(middlewares=[_errors, _Key(key)], client_max_size=MAX_BODY)
    app[TABLE], app[CAPACITY] = LeaseTable(make, capacity), capacity
    routes = _Routes(app, tracks)
    app.router.add_get("/healthz", routes.health)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_post("/v1/leases", routes.open)
    for what in ("reset", "step", "evaluate", "heartbeat"):
        app.router.add_post(f"/v1/leases/{{lease}}/{what}", getattr(routes, what))
    app.router.add_delete("/v1/leases/{lease}", routes.close)
    app.cleanup_ctx.append(_reaping)
    return app


async def _reaping(app: web.Application) -> AsyncIterator[None]:
    reaper = asyncio.create_task(app[TABLE].run())
    yield
    reaper.cancel()
    await app[TABLE].close_all("the server was stopped")


class _Key:
    """The middleware that asks for the key."""

    def __init__(self, key: str) -> None:
        self._wanted = f"Bearer {key}".encode()

    __middleware_version__ = 1  # how aiohttp knows one of the new kind

    async def __call__(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if request.path != "/healthz" and not hmac.compare_digest(given, self._wanted):
            return _error(401, "unauthorized", "the key is missing or wrong: send Authorization: Bearer <key>")
        return await handler(request)


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except (EnvironmentFailed, ValueError) as error:
        status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
        return _error(status, error_name(error), str(error))
    except web.HTTPException as error:
        return _error(error.status, "invalid_request", error.text or error.reason)


def _error(status: int, name: str, message: str) -> web.Response:
    return web.json_response({"error": {"type": name, "message": message}}, status=status)


class _Routes:
    def __init__(self, app: web.Application, tracks: tuple[str, ...]) -> None:
        self._table, self._capacity, self._tracks = app[TABLE], app[CAPACITY], tracks

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def metrics(self, _: web.Request) -> web.Response:
        lines = [f"clawrl_environment_{name}_total {count}" for name, count in self._table.counts.items()]
        lines += [f"clawrl_environment_leases {len(self._table)}", f"clawrl_environment_places {self._capacity}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def open(self, request: web.Request) -> web.Response:
        body = await _body(request)
        track = _field(body, "track", str)
        if track not in self._tracks:
            raise ValueError(f"track: {track!r} is not served here: {', '.join(self._tracks)} are")
        if unknown := sorted(set(body) - {"track", "deadline_s", "heartbeat_s"}):
            raise ValueError(f"{unknown[0]}: unknown; a lease has track, deadline_s and heartbeat_s")
        given = {name: body[name] for name in ("deadline_s", "heartbeat_s") if name in body}
        terms = LeaseTerms(**given)
        lease_id = new_id()
        try:
            await self._table.open(lease_id, track, terms)
        except NoRoom:
            full = _error(503, "pool_full", f"all {self._capacity} places are taken: ask again")
            full.headers["Retry-After"] = "1"
            return full
        return web.json_response({"lease_id": lease_id, **asdict(terms)}, status=201)

    async def reset(self, request: web.Request) -> web.Response:
        body = await _body(request)
        task = Task.from_json(_field(body, "task", dict))
        for name, most in MOST.items():
            if (value := getattr(task.limits, name)) > most:
                raise TaskError(f"limits.{name} is {value:g}: this server gives at most {most:g}")
        return web.json_response((await self._table.reset(request.match_info["lease"], task)).to_json())

    async def step(self, request: web.Request) -> web.Response:
        body = await _body(request)
        index = _field(body, "index", int)
        action = Action.from_json(_field(body, "action", dict))
        return web.json_response((await self._table.step(request.match_info["lease"], index, action)).to_json())

    async def evaluate(self, request: web.Request) -> web.Response:
        return web.json_response((await self._table.evaluate(request.match_info["lease"])).to_json())

    async def heartbeat(self, request: web.Request) -> web.Response:
        return web.json_response({"left_s": self._table.heartbeat(request.match_info["lease"])})

    async def close(self, request: web.Request) -> web.Response:
        await self._table.close(request.match_info["lease"])
        return web.json_response({"closed": True})


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON, or nested too deeply: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def _field(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name}: {value!r}: a JSON {kind.__name__} is needed")
    return value
