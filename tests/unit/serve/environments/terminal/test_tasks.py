"""The shipped tasks: every expert solves, no wrong solution does."""

import asyncio
from collections import Counter

from serve.environments.protocol import Outcome
from serve.environments.tasks import Task
from serve.environments.terminal import TerminalEnvironment, expert_action, load, parse_plain, plain_text

AT_ONCE = 3


async def play(task: Task, entries, plain: bool) -> tuple[Outcome, list[str]]:
    environment = TerminalEnvironment()
    try:
        seen = await environment.reset(task)
        texts = [seen.text]
        for number, entry in enumerate(entries, 1):
            action = expert_action(entry, seen)
            result = await environment.step(parse_plain(plain_text(action)) if plain else action)
            seen = result.observation
            texts.append(seen.text)
            assert result.done == (number == len(entries)), (task.task_id, texts)
        return await environment.evaluate(), texts
    finally:
        await environment.close()


async def all_of(one) -> list:
    places = asyncio.Semaphore(AT_ONCE)

    async def bounded(task: Task):
        async with places:
            return task, await one(task)

    return await asyncio.gather(*(bounded(task) for task in load()))


def test_there_are_enough_and_of_every_kind():
    tasks = load()
    skills = {task.skill: task.split for task in tasks}
    assert len(tasks) >= 42 and len(skills) >= 8 and sum(split == "held_out" for split in skills.values()) >= 2
    assert sum(len([entry for entry in task.expert if entry != "done"]) >= 4 for task in tasks) >= 10
    assert set(Counter(task.difficulty for task in tasks)) == {1, 2, 3, 4, 5}
    assert sum(task.difficulty == 1 for task in tasks) >= 10
    assert all(task.expert and task.wrong and len(task.expert) <= task.limits.steps for task in tasks)
    assert len({task.instruction for task in tasks}) == len(tasks)


async def test_every_expert_solves():
    for task, (outcome, texts) in await all_of(lambda task: play(task, task.expert, plain=False)):
        assert outcome.score == 1.0, (task.task_id, texts, outcome)


async def test_no_wrong_solution_does():
    for task, (outcome, texts) in await all_of(lambda task: play(task, task.wrong, plain=True)):
        assert outcome.score < 1, (task.task_id, texts)
        assert not outcome.solved and any(check.detail for check in outcome.checks if not check.passed)


async def test_doing_nothing_solves_nothing():
    for task, (outcome, _) in await all_of(lambda task: play(task, ["done"], plain=True)):
        assert outcome.score == -1, (task.task_id, outcome)


def test_every_entry_has_a_plain_form():
    for task in load():
        for entry in (*task.expert, *task.wrong):
            action = expert_action(entry, None)
            assert parse_plain(plain_text(action)).calls == action.calls
