"""Many episodes at once: experts, wrong solutions or a model over a track's tasks, in this process or in a pool.

What it leaves out: waves (planned, resumable, stored), which are the flows' matter.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from serve.environments.catalog import EnvironmentSettings, track
from serve.environments.episode import EpisodeRun, EpisodeSettings, Policy, run_episode
from serve.environments.protocol import Environment
from serve.environments.tasks import Task
from storage.records import new_id

Lease = Callable[[str], AbstractAsyncContextManager[Environment]]  # a track -> an environment for one episode


@asynccontextmanager
async def local(name: str, settings: EnvironmentSettings | None = None) -> AsyncIterator[Environment]:
    """A fresh environment in this process."""
    environment = track(name).make(settings or EnvironmentSettings())
    try:
        yield environment
    finally:
        await environment.close()


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play."""

    task: Task
    policy: Policy


async def play_all(
    jobs: Sequence[Job], *, at_once: int, lease: Lease = local, settings: EpisodeSettings | None = None,
    on_end: Callable[[EpisodeRun], None] = lambda run: None,
) -> list[EpisodeRun]:  # fmt: skip
    """Play them, `at_once` at a time; the runs in the order of the jobs.

    Args:
        jobs: what to play.
        at_once: how many at the same time.
        lease: where environments come from.
        settings: how episodes are run.
        on_end: told of each episode as it ends, for progress.
    """
    room = asyncio.Semaphore(at_once)

    async def one(job: Job) -> EpisodeRun:
        async with room, lease(job.task.track) as environment:
            run = await run_episode(
                environment, job.task, job.policy, episode_id=new_id(), settings=settings or EpisodeSettings()
            )
        on_end(run)
        return run

    return list(await asyncio.gather(*(one(job) for job in jobs)))
