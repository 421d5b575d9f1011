"""An environment at the other end of HTTP: ours (`http_server.py`), or anybody's that serves the same addresses."""

import asyncio
import contextlib
from dataclasses import asdict
from typing import Any

import aiohttp

from serve.environments.errors import ERRORS
from serve.environments.leases import LeaseTerms
from serve.environments.protocol import Action, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Task

TRIES = 4  # of one request while the connection fails; a step is idempotent by its index
WAIT_S = 0.5  # between them, doubled each time
PLACE_S = 60.0  # for a place to come free


class HttpEnvironment:
    """An `Environment` over HTTP. It leases when it is reset, and keeps the lease alive until it is closed."""

    def __init__(self, url: str, key: str, terms: LeaseTerms | None = None) -> None:
        self._url, self._key, self._terms = url.rstrip("/"), key, terms or LeaseTerms()
        self._session: aiohttp.ClientSession | None = None
        self._lease: str | None = None
        self._index = 0
        self._limit_s = self._terms.lasts_s(None)
        self._beating: asyncio.Task | None = None

    async def reset(self, task: Task) -> Observation:
        """See `Environment`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._key}"})
        self._limit_s = self._terms.answer_s(task)
        if self._lease is None:
            terms = {name: value for name, value in asdict(self._terms).items() if value is not None}
            self._lease = (await self._ask("POST", "/v1/leases", {"track": task.track, **terms}))["lease_id"]
            self._beating = asyncio.create_task(self._beat())
        return Observation.from_json(await self._of_lease("reset", {"task": task.to_json()}))

    async def step(self, action: Action) -> StepResult:
        """See `Environment`."""
        result = await self._of_lease("step", {"index": self._index, "action": action.to_json()})
        self._index += 1
        return StepResult.from_json(result)

    async def evaluate(self) -> Outcome:
        """See `Environment`."""
        return Outcome.from_json(await self._of_lease("evaluate", {}))

    async def close(self) -> None:
        """See `Environment`."""
        if self._beating is not None:
            self._beating.cancel()
        if self._session is None:
            return
        if self._lease is not None:
            lease, self._lease = self._lease, None
            with contextlib.suppress(EnvironmentFailed, ValueError):  # its heartbeat ends there, and then the lease
                await self._ask("DELETE", f"/v1/leases/{lease}", {})
        session, self._session = self._session, None
        await session.close()

    async def _of_lease(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._lease is None:
            raise ValueError(f"{what}: reset comes before anything else")
        return await self._ask("POST", f"/v1/leases/{self._lease}/{what}", body)

    async def _ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request; again while the connection fails, or no place is free.

        Raises:
            EnvironmentFailed, LeaseLost, SandboxUnavailable, TaskError, ValueError: as the server says.
        """
        tries, waited = 0, 0.0
        while True:
            try:
                limit = aiohttp.ClientTimeout(total=self._limit_s)
                async with self._session.request(method, self._url + path, json=body, timeout=limit) as response:
                    if response.status == 503 and "Retry-After" in response.headers and waited < PLACE_S:
                        pause = float(response.headers["Retry-After"])
                    elif response.status < 300:
                        return await _object(response)
                    else:
                        raise await _told(response)
            except TimeoutError:
                raise EnvironmentFailed(f"{self._url}{path}: no answer within {self._limit_s:g} s") from None
            except aiohttp.ClientError as error:
                tries += 1
                if tries >= TRIES:
                    why = f"{type(error).__name__}: {error}"
                    raise EnvironmentFailed(f"{self._url}{path} can't be reached: {why}") from error
                pause = WAIT_S * 2**tries
            waited += pause
            await asyncio.sleep(pause)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._terms.heartbeat_s / 3)
            with contextlib.suppress(EnvironmentFailed, ValueError):  # the next request says so
                await self._of_lease("heartbeat", {})


async def _object(response: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        value = await response.json(content_type=None)
    except ValueError as error:
        raise EnvironmentFailed(f"{response.url} answered with something else than JSON: {error}") from error
    if not isinstance(value, dict):
        raise EnvironmentFailed(f"{response.url} answered with {type(value).__name__}: a JSON object is needed")
    return value


async def _told(response: aiohttp.ClientResponse) -> Exception:
    """The error that an answer carries."""
    said = (await _object(response)).get("error")
    if not isinstance(said, dict):
        return EnvironmentFailed(f"{response.url} answered with status {response.status}")
    return ERRORS.get(said.get("type"), EnvironmentFailed)(said.get("message", ""))
