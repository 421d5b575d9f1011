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
from serve.environments.gui.load import check_payload, folder_of
from serve.environments.gui.pictures import Screens
from serve.environments.gui.site import ORIGIN, Site
from serve.environments.gui.tree import DIFF_LINES, differ, within
from serve.environments.gui.window import Gone, Look, Window
from serve.environments.protocol import MAX_CALLS, Action, Check, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Limits, Task, TaskError

CHECK_S = 5.0  # of one check
FAULT_CHARS = 1000  # of what is said of a fault
TREE_CHARS = 50_000  # of the fact `tree`, which judges read
T = TypeVar("T")


class GuiEnvironment:
    """One episode at a time in one context of the process's browser.

    With `pages`, a task's own pages must lie in that folder: a task that comes over HTTP names no other of the host.
    """

    def __init__(self, browser: Browser | None = None, pages: Path | None = None) -> None:
        self._browser = browser
        self._pages = pages
        self._checks: list[dict[str, str]] = []
        self._window: Window | None = None
        self._limits = Limits()
        self._shown: Look | None = None
        self._screens = Screens()

    async def reset(self, task: Task) -> Observation:
        """Load the task's page in a fresh context.

        Raises:
            TaskError: a field of the task is wrong, or its page is not served here.
            EnvironmentFailed: the page does not load.
        """
        await self.close()
        payload, site = self._read(task)
        self._limits, self._checks = task.limits, payload["checks"]
        browser = self._browser or shared()
        limit_s = self._limits.step_s
        opening = Window.open(browser, site, payload["start"], payload["storage"], limit_s)
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

    def _read(self, task: Task) -> tuple[dict[str, Any], Site]:
        def fail(name: str, what: str) -> TaskError:
            return TaskError(f"{task.source or task.task_id}: {name}: {what}")

        if not isinstance(task.instruction, str) or not task.instruction.strip():
            raise fail("instruction", f"{task.instruction!r:.100}: a text is needed")
        payload = check_payload(task.payload, fail)
        return payload, Site(folder_of(task.payload.get("pages"), payload["page"], self._pages, fail))

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
        text = _cut("\n".join(lines), 2 * self._limits.output_chars).encode("utf-8", "replace").decode("utf-8")
        return StepResult(observation=Observation(text=text, images=(look.png,), facts=facts), done=done)

    async def evaluate(self) -> Outcome:
        """Run the task's checks in the page."""
        window, _ = self._open()
        checks = [await self._check(window, one) for one in self._checks]
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
            for number, call in enumerate(action.calls):
                if number == MAX_CALLS:
                    raise Fault(f"{MAX_CALLS} actions in one answer are the most")
                happened.append(await hand.carry_out(call))
                done = call.name == "done"
                if done:
                    break
                await window.settle()
        except Fault as found:
            nothing = "nothing was done" if not happened else "what follows was not done"
            happened.append(_cut(f"{nothing}: {found}", FAULT_CHARS))
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
            raise EnvironmentFailed(f"check {name!r:.100} gave {value!r:.80}: true or false is needed")
        return Check(name=name, passed=value)

    def _page_lines(self, look: Look, first: list[str], used: int = 0) -> list[str]:
        lines = [*first, f'page "{_cut(look.title, 200)}" {_cut(look.url.removeprefix(ORIGIN), 300)}']
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


def _cut(text: str, most: int) -> str:
    """A text, its middle left out where it is longer."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}... ({len(text) - 2 * half} characters left out) ...{text[-half:]}"
