"""The pool on real Ray with real sandboxes: experts, fairness, back-pressure, deaths."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest
import ray

from serve.environments.catalog import track
from serve.environments.leases import LeaseTerms
from serve.environments.policies import ScriptedPolicy
from serve.environments.pool import Pool, PoolFull, PoolSettings
from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.runs import Job, play_all

SETTINGS = PoolSettings(light_workers=2, light_places=2, spares=1, max_waiting=3)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Ray of its own, on loopback."""
    ray.init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100_000_000,
        log_to_driver=False, logging_level="error",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    made = await Pool.start(SETTINGS)
    yield made
    await made.stop()


def easy():
    return next(task for task in track("terminal").load() if task.difficulty == 1)


def bash(command: str) -> Action:
    return Action(text="", calls=(Call(name="bash", arguments={"command": command}),))


def sandboxes(pids: list[int]) -> list[psutil.Process]:
    return [p for pid in pids for p in psutil.Process(pid).children(recursive=True) if p.name() == "bwrap"]


async def test_experts_of_three_tracks_end_solved_and_leave_nothing(pool: Pool) -> None:
    tasks = [task for name in ("terminal", "tool_call", "swe") for task in track(name).load()[:6]]
    jobs = [Job(task, ScriptedPolicy(task.expert)) for task in tasks]
    runs = await play_all(jobs, at_once=6, lease=lambda name: pool.lease(name))
    assert {(run.task.task_id, run.episode.outcome, run.episode.reason) for run in runs} == {
        (task.task_id, 1.0, None) for task in tasks
    }
    await asyncio.sleep(1.5)
    status = await pool.status()
    assert status["leases"] == 0 and all(worker["live"] == {} for worker in status["workers"])
    assert status["counts"]["granted"] == len(tasks) == status["counts"]["returned"]


async def test_owners_get_places_in_turn_and_who_comes_too_late_is_told_when_to_come_again(pool: Pool) -> None:
    held = [pool.lease("terminal", owner="many") for _ in range(4)]
    for one in held:
        await one.__aenter__()
    order: list[str] = []

    async def wants(owner: str) -> None:
        async with pool.lease("terminal", owner=owner):
            order.append(owner)

    waiting = [asyncio.create_task(wants("many")), asyncio.create_task(wants("many"))]
    await asyncio.sleep(0.3)
    waiting.append(asyncio.create_task(wants("few")))
    await asyncio.sleep(0.3)
    with pytest.raises(PoolFull, match="3 wait for terminal already") as full:
        await wants("late")
    assert full.value.retry_after_s >= 1
    for one in held:
        await one.__aexit__(None, None, None)
        await asyncio.sleep(0.3)
    await asyncio.gather(*waiting)
    assert order == ["many", "few", "many"]
    with pytest.raises(PoolFull, match=r"within 0\.2 s"):
        async with (
            pool.lease("terminal"), pool.lease("terminal"), pool.lease("terminal"), pool.lease("terminal"),
            pool.lease("terminal", wait_s=0.2),
        ):  # fmt: skip
            pass


async def test_a_worker_that_is_killed_ends_its_episodes_with_the_reason_and_is_replaced(pool: Pool) -> None:
    async with pool.lease("terminal") as environment:
        await environment.reset(easy())
        taken = [worker for worker in (await pool.status())["workers"] if worker["taken"]]
        running = asyncio.create_task(environment.step(bash("sleep 15")))
        await asyncio.sleep(0.5)
        left = sandboxes([taken[0]["pid"]])
        os.kill(taken[0]["pid"], signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="the worker died"):
            await running
    until = time.monotonic() + 30
    while time.monotonic() < until:
        status = await pool.status()
        if status["counts"]["workers_lost"] == 1 and all(worker["ready"] for worker in status["workers"]):
            break
        await asyncio.sleep(0.3)
    assert status["leases"] == 0 and len(status["workers"]) == 2
    _, alive = psutil.wait_procs(left, timeout=5)
    assert alive == []
    jobs = [Job(easy(), ScriptedPolicy(easy().expert)) for _ in range(4)]
    assert [run.episode.outcome for run in await play_all(jobs, at_once=4, lease=pool.lease)] == [1.0] * 4


async def test_a_sandbox_that_is_killed_is_an_error_of_its_episode_alone(pool: Pool) -> None:
    async with pool.lease("terminal") as one, pool.lease("terminal") as two:
        await one.reset(easy())
        before = {p.pid for p in sandboxes([w["pid"] for w in (await pool.status())["workers"]])}
        await two.reset(easy())
        running = asyncio.create_task(one.step(bash("sleep 15")))
        await asyncio.sleep(0.3)
        sleeping = [p for pid in before if psutil.pid_exists(pid) for p in psutil.Process(pid).children(recursive=True)]
        victim = next(p for p in sleeping if p.name() == "sleep")
        top = next(p for p in victim.parents() if p.name() == "bwrap")
        os.kill(top.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="the sandbox ended"):
            await running
        assert (await two.step(bash("echo fine"))).observation.facts["exit_code"] == 0


async def test_a_lease_past_its_deadline_or_of_a_silent_holder_is_taken_back(pool: Pool) -> None:
    async with pool.lease("terminal", terms=LeaseTerms(deadline_s=1.0)) as environment:
        await environment.reset(easy())
        with pytest.raises(EnvironmentFailed, match="deadline of 1 s passed"):
            await environment.step(bash("sleep 15"))
    silent = pool.lease("terminal", terms=LeaseTerms(heartbeat_s=0.5))
    environment = await silent.__aenter__()
    await environment.reset(easy())
    environment._beating.cancel()  # as if its process were gone
    await asyncio.sleep(2.5)
    assert all(worker["live"] == {} for worker in (await pool.status())["workers"])
    await silent.__aexit__(None, None, None)
