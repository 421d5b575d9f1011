"""Plays a solution through a real environment."""

from collections.abc import Iterable
from typing import Any

from serve.environments import swe
from serve.environments.protocol import Observation, Outcome
from serve.environments.swe import shipped
from serve.environments.tasks import Task


async def play(task: Task, entries: Iterable[Any], environment: Any = None) -> tuple[Outcome, list[Observation]]:
    """The outcome, and what was seen."""
    played = environment or swe.make()
    try:
        seen = [await played.reset(task)]
        for entry in entries:
            result = await played.step(swe.expert_action(entry, seen[-1]))
            seen.append(result.observation)
        assert result.done == (entry == "submit")
        return await played.evaluate(), seen
    finally:
        await played.close()


def shipped_task(task_id: str) -> Task:
    """One of ours."""
    return next(task for task in shipped.load() if task.task_id == task_id)
