"""Plays the tasks of a track in this process, some at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from serve.environments.catalog import TrackModule
from serve.environments.protocol import Outcome
from serve.environments.tasks import Task

AT_ONCE = 3


async def play(module: TrackModule, task: Task, entries: Iterable[Any], plain: bool) -> tuple[Outcome, list[str]]:
    """The outcome of a solution, and the texts that were seen. Exactly its last entry ends the episode."""
    environment = module.make()
    entries = list(entries)
    try:
        seen = await environment.reset(task)
        texts = [seen.text]
        for number, entry in enumerate(entries, 1):
            action = module.expert_action(entry, seen)
            result = await environment.step(module.parse_plain(module.plain_text(action)) if plain else action)
            seen = result.observation
            texts.append(seen.text)
            assert result.done == (number == len(entries)), (task.task_id, texts)
        return await environment.evaluate(), texts
    finally:
        await environment.close()


async def all_of(module: TrackModule, one: Callable[[Task], Awaitable[Any]]) -> list[tuple[Task, Any]]:
    """Each task of a track, and what `one` gave for it."""
    places = asyncio.Semaphore(AT_ONCE)

    async def bounded(task: Task) -> tuple[Task, Any]:
        async with places:
            return task, await one(task)

    return await asyncio.gather(*(bounded(task) for task in module.load()))
