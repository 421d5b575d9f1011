"""The protocol over real HTTP, on loopback: keys, leases, idempotence, errors; and a real sandbox behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.episode import run_episode
from serve.environments.http_client import HttpEnvironment
from serve.environments.http_server import make_app
from serve.environments.leases import LeaseLost
from serve.environments.policies import ScriptedPolicy
from serve.environments.protocol import Action, EnvironmentFailed
from tests.unit.serve.environments.stand_in import EnvironmentStandIn, task

KEY = "a-key-for-the-tests"


@asynccontextmanager
async def server(make=lambda name: EnvironmentStandIn(), capacity: int = 2) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(make, KEY, capacity))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def ask(url: str, method: str = "POST", body: object = None, key: str = KEY) -> tuple[int, dict]:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_a_task_is_done_over_http_as_it_is_here() -> None:
    chosen = next(task for task in track("terminal").load() if len(task.expert) >= 4)
    async with server(lambda name: track(name).make(EnvironmentSettings())) as url:
        environment = HttpEnvironment(url, KEY)
        run = await run_episode(environment, chosen, ScriptedPolicy(chosen.expert), episode_id="e")
        await environment.close()
    assert (run.episode.status, run.episode.outcome) == ("done", 1.0)


@pytest.mark.parametrize("key", ["", "wrong", KEY + "x"])
async def test_without_the_key_nothing_is_done(key: str) -> None:
    async with server() as url:
        status, said = await ask(f"{url}/v1/leases", body={"track": "terminal"}, key=key)
        assert status == 401 and said["error"]["type"] == "unauthorized"
        environment = HttpEnvironment(url, key)
        with pytest.raises(EnvironmentFailed, match="key is missing or wrong"):
            await environment.reset(task())
        await environment.close()
        status, _ = await ask(f"{url}/healthz", "GET", key=key)
        assert status == 200


async def test_a_repeated_step_is_done_once_and_errors_have_their_status() -> None:
    async with server() as url:
        _, lease = await ask(f"{url}/v1/leases", body={"track": "terminal", "deadline_s": 5})
        base = f"{url}/v1/leases/{lease['lease_id']}"
        step = {"index": 0, "action": {"text": "x"}}
        assert (await ask(f"{base}/step", body=step))[0] == 400
        assert (await ask(f"{base}/reset", body={"task": task().to_json()}))[1]["text"] == "begun"
        first, again = await ask(f"{base}/step", body=step), await ask(f"{base}/step", body=step)
        assert first == again and first[1]["observation"]["text"] == "step 1"
        assert (await ask(f"{base}/step", body={"index": 7, "action": {}}))[0] == 400
        assert (await ask(f"{base}/step", body={"index": "0", "action": {}}))[1]["error"]["message"].startswith("index")
        assert (await ask(f"{base}/step", body={"index": 1, "action": {"calls": [{"x": 1}]}}))[0] == 400
        assert (await ask(f"{base}/heartbeat"))[1]["left_s"] < 5
        status, said = await ask(f"{base}/step", body={"index": 1, "action": {"text": "fail"}})
        assert (status, said["error"]) == (502, {"type": "environment_failed", "message": "the sandbox died"})
        assert (await ask(base, "DELETE"))[0] == 200
        status, said = await ask(f"{base}/step", body={"index": 2, "action": {"text": "x"}})
        assert status == 410 and "has ended: the sandbox died" in said["error"]["message"]
        assert (await ask(f"{url}/nowhere"))[0] == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"track": "desktop"}, "terminal"),
        ({"track": 3}, "track: 3"),
        ({"track": "terminal", "deadline_s": -1}, "deadline_s"),
        ([], "JSON object"),
    ],
)
async def test_a_lease_that_can_not_be_is_refused_with_the_field(body: object, said: str) -> None:
    async with server() as url:
        status, told = await ask(f"{url}/v1/leases", body=body)
        assert status == 400 and said in told["error"]["message"]


async def test_when_full_the_client_waits_and_gets_the_next_place() -> None:
    async with server(capacity=1) as url:
        one, two = HttpEnvironment(url, KEY), HttpEnvironment(url, KEY)
        await one.reset(task())
        status, told = await ask(f"{url}/v1/leases", body={"track": "terminal"})
        assert status == 503 and told["error"]["type"] == "pool_full"
        await one.close()
        await two.reset(task("other"))
        assert (await two.step(Action(text="done"))).done
        await two.close()
        with pytest.raises(ValueError, match="reset comes before"):
            await two.step(Action(text="x"))


async def test_a_lease_of_a_silent_holder_is_ended() -> None:
    made: list[EnvironmentStandIn] = []
    async with server(lambda name: made.append(EnvironmentStandIn()) or made[-1]) as url:
        _, lease = await ask(f"{url}/v1/leases", body={"track": "terminal", "heartbeat_s": 0.2})
        await ask(f"{url}/v1/leases/{lease['lease_id']}/reset", body={"task": task().to_json()})
        for _ in range(40):
            import asyncio

            await asyncio.sleep(0.1)
            if made[0].closed:
                break
        status, told = await ask(f"{url}/v1/leases/{lease['lease_id']}/reset", body={"task": task().to_json()})
        assert status == 410 and "no sign for 0.2 s" in told["error"]["message"]


async def test_a_server_that_is_gone_is_an_environment_that_failed(monkeypatch) -> None:
    monkeypatch.setattr("serve.environments.http_client.WAIT_S", 0.01)
    async with server() as url:
        environment = HttpEnvironment(url, KEY)
        await environment.reset(task())
    with pytest.raises(EnvironmentFailed, match="can't be reached"):
        await environment.step(Action(text="x"))
    await environment.close()
    assert issubclass(LeaseLost, EnvironmentFailed)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        make_app(lambda name: EnvironmentStandIn(), "short")


async def test_what_a_client_does_wrong_is_told_and_spoils_nothing() -> None:
    async with server() as url:
        assert (await ask(f"{url}/v1/leases", body={"track": "terminal", "foo": 1}))[0] == 400
        _, lease = await ask(f"{url}/v1/leases", body={"track": "terminal"})
        base = f"{url}/v1/leases/{lease['lease_id']}"
        huge = task().to_json() | {"limits": {"memory_mb": 3_000_000}}
        status, told = await ask(f"{base}/reset", body={"task": huge})
        assert status == 400 and "memory_mb is 3e+06: this server gives at most 8192" in told["error"]["message"]
        assert (await ask(f"{base}/reset", body={"task": task().to_json()}))[0] == 200
        other = task(steps_s=1).to_json()
        status, told = await ask(f"{base}/reset", body={"task": other})
        assert status == 400 and "another of the same id" in told["error"]["message"]
        call = {"name": "bash", "arguments": '{"command": "ls"}', "call_id": "1"}
        status, told = await ask(f"{base}/step", body={"index": 0, "action": {"calls": [call]}})
        assert status == 400 and "action.calls[0].arguments" in told["error"]["message"]
        assert (await ask(f"{base}/step", body={"index": 0, "action": {"text": "x"}}))[0] == 200
        assert (await ask(f"{base}/evaluate"))[0] == 200
        status, told = await ask(f"{base}/step", body={"index": 1, "action": {"text": "y"}})
        assert status == 400 and "the episode is over" in told["error"]["message"]


async def test_json_that_is_nested_too_deeply_is_refused() -> None:
    import aiohttp

    async with (
        server() as url,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        session.post(f"{url}/v1/leases", data="[" * 200_000) as response,
    ):
        assert response.status == 400 and "nested too deeply" in await response.text()
