"""The pool of environments: a Ray actor that hands out leases on the places of its workers.

What it does: `EnvironmentPool` (the actor) grants leases fairly between owners, says when it is full, watches its
workers, replaces the dead, and takes back places whose lease ended. `Pool` is the way in: `async with
pool.lease("terminal")` gives an `Environment`.
What it leaves out: what a lease is (`leases.py`), what a worker holds (`worker.py`).

A lease is granted here and used at the worker directly: a step costs one call. A worker that dies takes its leases with
it: their holders get `EnvironmentFailed` with that reason, and their episodes end as errors.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from serve.environments.catalog import track as find_track
from serve.environments.errors import ERRORS
from serve.environments.fair_queue import FairQueue
from serve.environments.leases import CLOSE_S, LeaseTerms
from serve.environments.protocol import Action, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Task
from serve.environments.worker import EnvironmentWorker
from storage.records import new_id

PING_S = 1.0
ANSWER_S = 10.0  # for a worker to answer a ping
MISSED = 3  # pings in a row, and the worker is stuck
OPEN_S = 30.0  # a granted lease that nobody began is taken back


class PoolFull(Exception):
    """Too many wait, or no place came free in time. Ask again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How many of what. Light tracks (terminal, tool_call, swe) share workers; browsers have their own."""

    light_workers: int = 2
    light_places: int = 8  # of each
    gui_workers: int = 0  # a browser each, some 300 MB
    gui_places: int = 4
    spares: int = 2  # sandboxes kept ready by each worker, of each kind in use
    max_waiting: int = 256  # who comes beyond that is told to come again
    wait_s: float = 120.0  # for a place
    cpus_per_worker: float = 0.0  # on a cluster: what Ray reserves, and spreads by
    repositories: Path | None = None  # on every node: where the git repositories of SWE-bench rows lie

    def __post_init__(self) -> None:
        for name in ("light_workers", "gui_workers", "spares", "max_waiting"):
            if not isinstance(value := getattr(self, name), int) or value < 0:
                raise ValueError(f"{name} is {value!r}: a whole number from 0 is needed")
        for name in ("light_places", "gui_places", "wait_s"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} is {value!r}: it must be above 0")


@dataclass(slots=True)
class _Worker:
    name: str
    kind: str
    handle: Any
    places: int
    leases: dict[str, float] = field(default_factory=dict)  # lease id -> granted at
    missed: int = 0
    said: dict[str, Any] = field(default_factory=dict)  # its last ping
    ready: bool = False


def kind_of(name: str) -> str:
    """Which kind of worker a track needs."""
    return "gui" if name == "gui" else "light"


@ray.remote(num_cpus=0, max_concurrency=10000)
class EnvironmentPool:
    """Grants and takes back. It holds no environment itself."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._queues: dict[str, FairQueue[asyncio.Future]] = {"light": FairQueue(), "gui": FairQueue()}
        self._numbers = itertools.count()
        self._workers: list[_Worker] = []
        self._started = time.monotonic()
        self._counts = {"granted": 0, "returned": 0, "refused": 0, "taken_back": 0, "lost": 0, "workers_lost": 0}
        self._waited_s: list[float] = []
        self._watching: asyncio.Task | None = None
        self._stopped = False
        self._places = {
            "light": (settings.light_workers, settings.light_places), "gui": (settings.gui_workers, settings.gui_places)
        }  # fmt: skip
        for kind, (count, _) in self._places.items():
            self._workers += [self._new(kind) for _ in range(count)]

    async def ready(self) -> None:
        """Once every worker has answered."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        await asyncio.gather(*(self._ping(worker) for worker in list(self._workers)))

    async def acquire(self, name: str, owner: str, wait_s: float | None = None) -> tuple[str, Any]:
        """("ok", (lease id, worker)) when a place is free, or ("full", (text, seconds to wait before asking again))."""
        kind = kind_of(name)
        if self._places[kind][0] == 0:
            return "none", f"this pool has no places for {name}: set {kind}_workers above 0 in its settings"
        queue, wait_s = self._queues[kind], self._settings.wait_s if wait_s is None else wait_s
        if len(queue) >= self._settings.max_waiting:
            self._counts["refused"] += 1
            return "full", (f"{len(queue)} wait for {name} already, the most allowed", self._retry_after(kind))
        mine: asyncio.Future = asyncio.get_running_loop().create_future()
        asked = time.monotonic()
        queue.push(owner, mine)
        self._hand_out(kind)
        try:
            async with asyncio.timeout(wait_s):
                granted = await mine
        except TimeoutError:
            queue.remove(owner, mine)
            self._counts["refused"] += 1
            return "full", (f"no place for {name} came free within {wait_s:g} s", self._retry_after(kind))
        self._waited_s = [*self._waited_s[-999:], time.monotonic() - asked]
        return "ok", granted

    async def release(self, lease_id: str) -> None:
        """The place of a lease that its holder has closed."""
        self._give_back(lease_id, "returned")

    async def report(self, lease_id: str) -> None:
        """A holder found its worker dead: look at once."""
        for worker in list(self._workers):
            if lease_id in worker.leases:
                await self._ping(worker)

    async def status(self) -> dict[str, Any]:
        """Workers, leases, queue, counts."""
        waited = sorted(self._waited_s)
        return {
            "up_s": time.monotonic() - self._started,
            "counts": dict(self._counts),
            "leases": sum(len(worker.leases) for worker in self._workers),
            "waiting": {kind: queue.waiting() for kind, queue in self._queues.items() if len(queue)},
            "waited_p50_s": waited[len(waited) // 2] if waited else None,
            "waited_p99_s": waited[int(len(waited) * 0.99)] if waited else None,
            "workers": [
                {"name": w.name, "kind": w.kind, "places": w.places, "taken": len(w.leases), "ready": w.ready, **w.said}
                for w in self._workers
            ],
        }

    async def stop(self) -> None:
        """End all environments and workers."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        for worker in self._workers:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await worker.handle.stop.remote()
            ray.kill(worker.handle)
        self._workers = []

    def _new(self, kind: str) -> _Worker:
        places = self._places[kind][1]
        options = {"num_cpus": self._settings.cpus_per_worker, "scheduling_strategy": "SPREAD"}
        handle = EnvironmentWorker.options(**options).remote(places, self._settings.spares, self._settings.repositories)
        return _Worker(f"{kind}-{next(self._numbers)}", kind, handle, places)

    def _hand_out(self, kind: str) -> None:
        queue = self._queues[kind]
        while len(queue):
            free = [w for w in self._workers if w.kind == kind and w.ready and len(w.leases) < w.places]
            if not free:
                return
            worker = min(free, key=lambda w: len(w.leases) / w.places)
            mine = queue.pop()
            if mine.done():  # it waits no longer
                continue
            lease_id = new_id()
            worker.leases[lease_id] = time.monotonic()
            self._counts["granted"] += 1
            mine.set_result((lease_id, worker.handle))

    def _retry_after(self, kind: str) -> float:
        """A guess: the time in which as many places came free as now wait, between 1 and 60 s."""
        rate = (self._counts["returned"] + 1) / max(1.0, time.monotonic() - self._started)
        return min(60.0, max(1.0, len(self._queues[kind]) / rate))

    def _give_back(self, lease_id: str, how: str) -> None:
        for worker in self._workers:
            if worker.leases.pop(lease_id, None) is not None:
                self._counts[how] += 1
                self._hand_out(worker.kind)
                return

    async def _watch(self) -> None:
        while not self._stopped:
            await asyncio.sleep(PING_S)
            await asyncio.gather(*(self._ping(worker) for worker in list(self._workers)))

    async def _ping(self, worker: _Worker) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S if worker.ready else None):
                worker.said = await worker.handle.ping.remote()
        except ActorUnavailableError:
            worker.missed += 1
        except RayActorError as error:
            self._replace(worker, str(error).splitlines()[0])
            return
        except TimeoutError:
            worker.missed += 1
        else:
            worker.missed, worker.ready = 0, True
            self._reconcile(worker, began)
        if worker.missed >= MISSED:
            ray.kill(worker.handle)
            self._replace(worker, f"it did not answer {MISSED} times")

    def _reconcile(self, worker: _Worker, asked: float) -> None:
        """Take back what the worker no longer holds: ended by deadline or silence, or never begun."""
        for lease_id, granted in list(worker.leases.items()):
            if lease_id not in worker.said["live"] and asked - granted > OPEN_S:
                self._give_back(lease_id, "taken_back")
        self._hand_out(worker.kind)

    def _replace(self, worker: _Worker, why: str) -> None:
        if worker not in self._workers or self._stopped:
            return
        self._counts["workers_lost"] += 1
        self._counts["lost"] += len(worker.leases)
        self._workers[self._workers.index(worker)] = fresh = self._new(worker.kind)
        fresh.said = {"replaces": worker.name, "because": why}


class Pool:
    """The way to a pool from any process of the Ray cluster."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    async def start(cls, settings: PoolSettings, name: str | None = None) -> "Pool":
        """A new pool; under a name it can be found by others, and lives until it is stopped.

        Raises:
            SandboxUnavailable: no sandbox can start here.
        """
        options = {"name": name, "namespace": "clawrl", "lifetime": "detached"} if name else {}
        pool = cls(EnvironmentPool.options(**options).remote(settings))
        await pool._actor.ready.remote()
        return pool

    @classmethod
    def find(cls, name: str) -> "Pool":
        """A pool that runs under this name.

        Raises:
            ValueError: there is none.
        """
        return cls(ray.get_actor(name, namespace="clawrl"))

    @asynccontextmanager
    async def lease(
        self, track: str, owner: str = "", terms: LeaseTerms | None = None, wait_s: float | None = None
    ) -> AsyncIterator["PooledEnvironment"]:
        """An environment of this track, as soon as a place is free.

        Raises:
            ValueError: no such track, or none in this pool.
            PoolFull: too many wait, or none came free in time.
            EnvironmentFailed: the pool is gone.
        """
        find_track(track)
        try:
            answer, value = await self._actor.acquire.remote(track, owner, wait_s)
        except RayError as error:
            raise EnvironmentFailed(f"the pool of environments is gone: {str(error).splitlines()[0]}") from error
        if answer == "full":
            raise PoolFull(*value)
        if answer == "none":
            raise ValueError(value)
        environment = PooledEnvironment(self._actor, *value, track, terms or LeaseTerms())
        try:
            yield environment
        finally:
            await environment.close()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def status(self) -> dict[str, Any]:
        """Its workers, leases, queue and counts."""
        return await self._actor.status.remote()

    async def stop(self) -> None:
        """End it with everything it holds."""
        with contextlib.suppress(RayError):
            await self._actor.stop.remote()
        ray.kill(self._actor)


class PooledEnvironment:
    """An `Environment` at the other end of a lease. It keeps the lease alive as long as it is open."""

    def __init__(self, pool: Any, lease_id: str, worker: Any, track: str, terms: LeaseTerms) -> None:
        self._pool, self._worker = pool, worker
        self.lease_id = lease_id
        self._track, self._terms = track, terms
        self._index = 0
        self._limit_s = terms.lasts_s(None)
        self._beating: asyncio.Task | None = None
        self._closed = False

    async def reset(self, task: Task) -> Observation:
        """See `Environment`."""
        self._limit_s = self._terms.answer_s(task)
        seen = await self._call("reset", self._track, self._terms, task)
        self._beating = asyncio.create_task(self._beat())
        return seen

    async def step(self, action: Action) -> StepResult:
        """See `Environment`."""
        result = await self._call("step", self._index, action)
        self._index += 1
        return result

    async def evaluate(self) -> Outcome:
        """See `Environment`."""
        return await self._call("evaluate")

    async def close(self) -> None:
        """See `Environment`. The place is given back."""
        if self._closed:
            return
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
        with contextlib.suppress(EnvironmentFailed):
            await self._call("close")
        self._pool.release.remote(self.lease_id)

    async def _call(self, what: str, *args: Any) -> Any:
        """One request. It may be sent twice: the worker gives the first result again.

        Raises:
            EnvironmentFailed, LeaseLost, SandboxUnavailable, TaskError, ValueError: as the worker says.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                while True:
                    try:
                        answer, value = await self._worker.call.remote(self.lease_id, what, *args)
                        break
                    except ActorUnavailableError:
                        await asyncio.sleep(0.2)
        except TimeoutError:
            raise EnvironmentFailed(f"{what}: the worker gave no answer within {self._limit_s:g} s") from None
        except RayActorError as error:
            self._pool.report.remote(self.lease_id)
            raise EnvironmentFailed(f"{what}: the worker died: {str(error).splitlines()[0]}") from error
        if answer != "ok":
            raise ERRORS[answer](value)
        return value

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._terms.heartbeat_s / 3)
            with contextlib.suppress(EnvironmentFailed):  # the next request says so
                await self._call("heartbeat")
