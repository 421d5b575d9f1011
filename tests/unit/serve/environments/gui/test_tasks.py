"""Every task that ships: its expert solves it, its wrong solution does not, and doing nothing passes no check."""

import asyncio

import pytest

from serve.environments import gui
from serve.environments.gui.browser import Browser
from serve.environments.gui.environment import GuiEnvironment
from serve.environments.gui.site import PAGES
from serve.environments.protocol import Outcome
from serve.environments.tasks import Task

AT_ONCE = 4


async def play(browser: Browser, task: Task, kind: str) -> dict[str, Outcome]:
    """The outcomes of a solution, and of the page before it."""
    environment = GuiEnvironment(browser)
    try:
        observation = await environment.reset(task)
        untouched = await environment.evaluate()
        for entry in getattr(task, kind):
            result = await environment.step(gui.expert_action(entry, observation))
            assert kind == "wrong" or "not done" not in result.observation.text.splitlines()[0]
            observation = result.observation
        return {f"{task.task_id} {kind}": await environment.evaluate(), f"{task.task_id} untouched": untouched}
    finally:
        await environment.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_experts_solve_wrong_solutions_do_not_and_untouched_pages_pass_no_check(browser: Browser) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, kind: str) -> dict[str, Outcome]:
        async with places:
            return await play(browser, task, kind)

    played = await asyncio.gather(*(one(task, kind) for task in gui.load() for kind in ("expert", "wrong")))
    outcomes = {name: outcome for some in played for name, outcome in some.items()}
    kinds = ("expert", "wrong", "untouched")
    of = {kind: {n: o.score for n, o in outcomes.items() if n.endswith(kind)} for kind in kinds}
    assert {name: outcomes[name].checks for name, score in of["expert"].items() if score != 1.0} == {}
    assert {name: outcomes[name].checks for name, score in of["wrong"].items() if score == 1.0} == {}
    assert {name: outcomes[name].checks for name, score in of["untouched"].items() if score > -1.0} == {}
    assert len(of["expert"]) == len(of["wrong"]) == len(of["untouched"]) == len(gui.load())


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
