"""Every task that ships: its expert solves it, its wrong solution does not, and doing nothing passes no check."""

import asyncio
from collections.abc import Iterable

import pytest

from serve.environments import gui
from serve.environments.gui.browser import Browser
from serve.environments.gui.environment import GuiEnvironment
from serve.environments.gui.site import PAGES
from serve.environments.protocol import Outcome
from serve.environments.tasks import Task

AT_ONCE = 4


async def play(browser: Browser, task: Task, entries: Iterable[dict]) -> Outcome:
    environment = GuiEnvironment(browser)
    try:
        observation = await environment.reset(task)
        for entry in entries:
            result = await environment.step(gui.expert_action(entry, observation))
            assert "was not done" not in result.observation.text and "nothing was done" not in result.observation.text
            observation = result.observation
        return await environment.evaluate()
    finally:
        await environment.close()


async def play_all(browser: Browser, plays: dict[str, tuple[Task, Iterable[dict]]]) -> dict[str, Outcome]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, entries: Iterable[dict]) -> Outcome:
        async with places:
            return await play(browser, task, entries)

    return dict(zip(plays, await asyncio.gather(*(one(*play) for play in plays.values())), strict=True))


@pytest.mark.asyncio(loop_scope="module")
async def test_experts_solve_and_wrong_solutions_do_not(browser: Browser) -> None:
    tasks = {task.task_id: task for task in gui.load()}
    plays = {f"{name} expert": (task, task.expert) for name, task in tasks.items()}
    plays |= {f"{name} wrong": (task, task.wrong) for name, task in tasks.items()}
    outcomes = await play_all(browser, plays)
    unsolved = {name: one.checks for name, one in outcomes.items() if name.endswith("expert") and one.score != 1.0}
    fooled = {name: one.checks for name, one in outcomes.items() if name.endswith("wrong") and one.score == 1.0}
    assert not unsolved and not fooled


@pytest.mark.asyncio(loop_scope="module")
async def test_an_untouched_page_passes_no_check(browser: Browser) -> None:
    outcomes = await play_all(browser, {task.task_id: (task, ()) for task in gui.load()})
    assert {name: one.checks for name, one in outcomes.items() if one.score > -1} == {}


def test_there_are_enough_tasks_of_every_kind() -> None:
    tasks = gui.load()
    skills = {task.skill for task in tasks}
    assert len(tasks) >= 42 and len(skills) >= 8
    assert all(sum(task.skill == skill for task in tasks) >= 5 for skill in skills)
    assert len({task.skill for task in tasks if task.split == "held_out"}) >= 2
    assert sum(len(task.expert) >= 4 for task in tasks) >= 10
    assert {task.difficulty for task in tasks} == {1, 2, 3, 4, 5}
    assert all(any(task.skill == skill and task.difficulty == 1 for task in tasks) for skill in skills)


def test_every_task_has_room_for_its_expert() -> None:
    for task in gui.load():
        assert task.expert[-1] == {"do": "done"} and task.wrong[-1] == {"do": "done"}
        assert len(task.expert) < task.limits.steps


def test_every_page_is_used_and_asks_for_nothing_outside() -> None:
    pages = {path.name for path in PAGES.iterdir()} - {"_kit"}
    assert pages == {task.payload["page"] for task in gui.load()} and len(pages) == 15
    for path in PAGES.rglob("*.*"):
        text = path.read_text("utf-8")
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), path
