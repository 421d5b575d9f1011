"""The gui track: a web page in a real Chromium, used by mouse and keyboard, checked by what the page holds in the end.

What it does: `GuiEnvironment` loads a task's page, carries out actions and says what they changed: in the tree of
elements and on the screen; then evaluates the task's checks, JavaScript expressions, in the page.
What it leaves out: leases and the number of episodes at once (the pool's); what the policy is told of the task.
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from serve.environments.gui.actions import Fault, Hand
from serve.environments.gui.browser import START_S, Browser, first_line, shared
from serve.environments.gui.pictures import Screens
from serve.environments.gui.site import ORIGIN, PAGES, Site
from serve.environments.gui.tree import DIFF_LINES, differ, within
from serve.environments.gui.window import Gone, Look, Window
from serve.environments.protocol import Action, Check, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Limits, Task, TaskError

CHECK_S = 5.0  # of one check
TREE_CHARS = 50_000  # of the fact `tree`, which judges read
T = TypeVar("T")


class GuiEnvironment:
    """One episode at a time in one context of the process's browser."""

    def __init__(self, browser: Browser | None = None) -> None:
        self._browser = browser
        self._window: Window | None = None
        self._task: Task | None = None
        self._limits = Limits()
        self._shown: Look | None = None
        self._screens = Screens()

    async def reset(self, task: Task) -> Observation:
        """Load the task's page in a fresh context."""
        await self.close()
        self._task, self._limits = task, task.limits
        site = Site(folder_of(task))
        browser = self._browser or shared()
        limit_s = self._limits.step_s
        start, storage = task.payload.get("start", ""), task.payload.get("storage", {})
        opening = Window.open(browser, site, start, storage, limit_s)
        try:
            self._window = await asyncio.wait_for(opening, limit_s + START_S)  # the browser itself may have to start
        except TimeoutError as error:
            raise EnvironmentFailed(f"the page {site.folder.name} did not load within {limit_s:g} s") from error
        self._shown = look = await self._within(self._window.look())
        self._screens = Screens()
        self._screens.changed(look.png)
        text = "\n".join(self._page_lines(look, self._window.take_notes()))
        browser.prepare()
        return Observation(text=text, images=(look.png,), facts=_facts(look, (), None, False))

    async def step(self, action: Action) -> StepResult:
        """Carry out an answer's calls, in order, up to the first that can't be done."""
        window, before = self._open()
        if any(call.name == "done" for call in action.calls[:1]):
            facts = _facts(before, (), 0.0, False)
            return StepResult(observation=Observation(text="the task was said to be done", facts=facts), done=True)
        happened, done, look = await self._within(self._act(window, before, action))
        self._shown = look
        diff = differ(before.tree.lines, look.tree.lines)
        share = self._screens.changed(look.png)
        lines = [*happened, *window.take_notes(), *_diff_lines(diff), ""]
        lines += self._page_lines(look, [], sum(len(line) + 1 for line in lines))
        facts = _facts(look, diff, share, bool(diff) or look.url != before.url or share > 0)
        return StepResult(observation=Observation(text="\n".join(lines), images=(look.png,), facts=facts), done=done)

    async def evaluate(self) -> Outcome:
        """Run the task's checks in the page."""
        window, _ = self._open()
        assert self._task is not None
        checks = [await self._check(window, one) for one in self._task.payload["checks"]]
        return Outcome.of(tuple(checks))

    async def close(self) -> None:
        """End the episode's context."""
        window, self._window = self._window, None
        self._shown = None
        if window is not None:
            await window.close()

    def _open(self) -> tuple[Window, Look]:
        if self._window is None or self._shown is None:
            raise EnvironmentFailed("there is no page: reset comes first")
        return self._window, self._shown

    async def _act(self, window: Window, before: Look, action: Action) -> tuple[list[str], bool, Look]:
        hand = Hand(window, before.tree.elements, self._limits.step_s)
        happened: list[str] = []
        done = False
        fault = action.fault or (None if action.calls else "the answer holds no action")
        try:
            if fault:
                raise Fault(fault)
            for call in action.calls:
                happened.append(await hand.carry_out(call))
                done = call.name == "done"
                if done:
                    break
                await window.settle()
        except Fault as found:
            nothing = "nothing was done" if not happened else "what follows was not done"
            happened.append(f"{nothing}: {found}")
        return happened, done, await self._look(window)

    async def _look(self, window: Window) -> Look:
        for _ in range(3):
            try:
                return await window.look()
            except Gone:  # another document came in between
                await window.settle()
        raise EnvironmentFailed("the page changes again and again: it could not be read")

    async def _within(self, work: Awaitable[T]) -> T:
        """Wait for work in the page, not longer than a step may take, nor for a page that is broken.

        Raises:
            EnvironmentFailed: the page does not answer, crashed, or its browser ended.
        """
        from playwright.async_api import Error

        window = self._window
        assert window is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, window.broken}, timeout=self._limits.step_s, return_when=asyncio.FIRST_COMPLETED)
            if window.broken.done():
                raise EnvironmentFailed(window.broken.result())
            if not task.done():
                raise EnvironmentFailed(f"the page did not answer within {self._limits.step_s:g} s (limits.step_s)")
            return task.result()
        except (Error, Gone) as error:
            raise EnvironmentFailed(f"the browser failed: {first_line(error)}") from error
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=1)

    async def _check(self, window: Window, check: dict[str, Any]) -> Check:
        from playwright.async_api import Error

        name, work = check["name"], asyncio.ensure_future(window.page.evaluate(f"async () => ({check['js']})"))
        await asyncio.wait({work, window.broken}, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            reason = window.broken.result() if window.broken.done() else f"no answer within {CHECK_S:g} s"
            raise EnvironmentFailed(f"check {name!r}: {reason}")
        try:
            value = work.result()
        except Error as error:
            if check.get("error") == "fails":
                return Check(name=name, passed=False, detail=first_line(error))
            raise EnvironmentFailed(f"check {name!r}: {first_line(error)}") from error
        if not isinstance(value, bool):
            raise EnvironmentFailed(f"check {name!r} gave {value!r}: true or false is needed")
        return Check(name=name, passed=value)

    def _page_lines(self, look: Look, first: list[str], used: int = 0) -> list[str]:
        lines = [*first, f'page "{look.title}" {look.url.removeprefix(ORIGIN)}']
        rest = max(self._limits.output_chars - used - len(lines[-1]), 400)
        return lines + within(look.tree.lines, rest, "the page")


def _diff_lines(diff: tuple[str, ...]) -> list[str]:
    if not diff:
        return ["nothing changed on the page"]
    more = [f"[{len(diff) - DIFF_LINES} more changed lines]"] if len(diff) > DIFF_LINES else []
    return ["changed:", *diff[:DIFF_LINES], *more]


def _facts(look: Look, diff: tuple[str, ...], share: float | None, changed: bool) -> dict[str, Any]:
    elements = {one.element_id: {"role": one.role, "name": one.name} for one in look.tree.elements.values()}
    facts = {"url": look.url, "title": look.title, "elements": elements, "changed": changed}
    facts["tree"] = within(look.tree.lines, TREE_CHARS, "the page")
    return facts | {"tree_diff": list(diff), "pixels_changed": share or 0.0}


def folder_of(task: Task) -> Path:
    """The folder of a task's page.

    Raises:
        TaskError: there is no such page.
    """
    folder = Path(task.payload.get("pages") or PAGES) / str(task.payload.get("page"))
    if not (folder / "index.html").is_file():
        raise TaskError(f"{task.source or task.task_id}: page: there is no {folder / 'index.html'}")
    return folder
