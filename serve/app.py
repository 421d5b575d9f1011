"""Gateway and policy on Ray Serve: two applications, so that either can be replaced without the other.

What it does: `deploy(gateway, policy)` puts both on a Ray that the caller is connected to. With `listen_port` set, the
gateway's replica listens itself on loopback and Serve runs no proxy; without, Serve's own proxy is the way in.
What it leaves out: starting Ray (`infra/`), the learner (`serve/actors.py`), the judge (`serve/judging.py`).
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve

from serve.gateway import GatewaySettings, Where
from serve.listener import Listener, front, put_behind_proxy
from serve.loopback import stay_on_loopback
from serve.policy import PolicySettings

NAMESPACE = "clawrl"  # of the learner's and the trainer's actors
POLICY, GATEWAY = "policy", "gateway"


class HandleLink:
    """The policy behind a Serve handle. Its address is remembered: it keeps its port when its engine restarts."""

    def __init__(self) -> None:
        self._handle = serve.get_deployment_handle("Policy", POLICY)
        self._known: Where | None = None

    async def where(self, fresh: bool = False) -> Where:
        """Remembered while it is ready."""
        if fresh or self._known is None or self._known.state != "ready":
            self._known = Where(**await self._ask("address"))
        return self._known

    async def status(self) -> dict[str, Any]:
        """Asked each time."""
        return await self._ask("status")

    async def _ask(self, method: str) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(_result(getattr(self._handle, method).remote()), 5)
        except (ray.exceptions.RayError, serve.exceptions.RayServeException) as error:
            raise OSError(f"the policy does not answer: {error}") from error


async def _result(response: Any) -> Any:
    return await response


async def learner_status() -> dict[str, Any]:
    """The learner's own, with what the trainer is doing; an error where there is none."""
    found = await _actor_status("learner")
    try:
        found["trainer"] = await asyncio.wait_for(_actor_status("trainer"), 2)
    except (ray.exceptions.RayError, ValueError, TimeoutError) as fault:  # boundary: it may be restarting
        found["trainer"] = {"phase": f"not reachable: {fault}"[:200]}
    return found


async def _actor_status(name: str) -> dict[str, Any]:
    actor = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
    return await actor.status.remote()


@serve.deployment(
    name="Policy",
    num_replicas=1,
    max_ongoing_requests=100,
    graceful_shutdown_timeout_s=15,
    health_check_period_s=5,
    ray_actor_options={"num_cpus": 0},
)
class PolicyDeployment:
    """`serve.policy.Policy` as a deployment. It owns the engine's process, which dies with it."""

    def __init__(self, settings: PolicySettings) -> None:
        from serve.policy import Policy, StoreSource, journal_alarms

        stay_on_loopback()
        source = StoreSource(settings) if settings.store and settings.tracking_uri else None
        self._policy = Policy(settings, source, journal_alarms(settings))
        self._started: asyncio.Task[None] | None = None

    async def _ready(self) -> Any:
        if self._started is None:  # the engine's parent must be this thread: its loop runs as long as the replica
            self._started = asyncio.create_task(self._policy.start())
        await self._started
        return self._policy

    async def address(self) -> dict[str, Any]:
        """For gateways."""
        return (await self._ready()).address()

    async def status(self) -> dict[str, Any]:
        """For people."""
        return {**(await self._ready()).status(), "pid": os.getpid()}

    async def poke(self) -> None:
        """Look at the aliases now."""
        (await self._ready()).poke()

    async def check_health(self) -> None:
        """Serve asks it; an engine that died is the watcher's business, not a reason to replace the replica."""
        await self._ready()

    async def __del__(self) -> None:
        await self._policy.close()


@serve.deployment(
    name="Gateway",
    num_replicas=1,
    max_ongoing_requests=1000,
    graceful_shutdown_timeout_s=30,
    graceful_shutdown_wait_loop_s=0.2,
    health_check_period_s=5,
    ray_actor_options={"num_cpus": 0},
)
@serve.ingress(lambda: front)  # a builder: Serve would call a plain function as one
class GatewayDeployment:
    """`serve.gateway.Gateway` as a deployment."""

    def __init__(self, settings: GatewaySettings) -> None:
        from serve.gateway import Gateway
        from serve.rendering import Renderer
        from storage.journal import JournalWriter

        stay_on_loopback()
        journal = JournalWriter(
            Path(settings.journal_root), settings.model, f"gateway-{os.getpid()}-{int(time.time())}"
        )
        renderer = Renderer(Path(settings.model_dir), settings.template)
        self._gateway = Gateway(settings, HandleLink(), journal, renderer, status_parts={"learner": learner_status})
        put_behind_proxy(self._gateway)
        self._listener = None
        if settings.listen_port is not None:
            self._listener = Listener(self._gateway, settings.listen_host, settings.listen_port)
        self._listening: asyncio.Task[None] | None = None

    async def check_health(self) -> None:
        """Serve asks it; the first time, the replica begins to listen."""
        if self._listener is not None and self._listening is None:
            self._listening = asyncio.create_task(self._listener.start())
            await self._listening

    async def __del__(self) -> None:
        from serve.gateway import CUT_S

        drain_s = self._gateway.settings.drain_s
        closing = asyncio.create_task(self._gateway.close())
        if self._listener is not None:
            await self._listener.stop(drain_s + CUT_S + 1.0)
        await closing


def deploy(gateway: GatewaySettings, policy: PolicySettings, *, timeout_s: float = 450.0) -> None:
    """Put both on the Ray that we are connected to, and wait until the model answers."""
    if gateway.listen_port is not None:
        serve.start(proxy_location="Disabled")
    else:
        serve.start(http_options={"host": gateway.listen_host})
    serve.run(PolicyDeployment.bind(policy), name=POLICY, route_prefix=None)
    serve.run(GatewayDeployment.bind(gateway), name=GATEWAY, route_prefix="/")
    wait_ready(timeout_s)


def wait_ready(timeout_s: float) -> None:
    """Wait until the engine serves. TimeoutError says what it does instead, with its alarms."""
    handle = serve.get_deployment_handle("Policy", POLICY)
    until_s = time.monotonic() + timeout_s
    while True:
        status = handle.status.remote().result(timeout_s=30)
        if status["state"] == "ready":
            return
        if time.monotonic() > until_s:
            raise TimeoutError(f"the engine is {status['state']} after {timeout_s:.0f} s: {status['alarms']}")
        time.sleep(0.3)
