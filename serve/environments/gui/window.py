"""One page in one context: what it shows, and the ways to reach into it.

What it does: `Window.open` loads a task's page; `look` takes tree and screenshot; `call` reaches elements; `settle`
waits until the page is quiet. Dialogs, refused requests and windows, and crashes are noticed here; `take_notes` tells
what they said.
What it leaves out: what an action is (`actions.py`); more than one window (a second one is refused and noted).
"""

import asyncio
import base64
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serve.environments.gui import elements
from serve.environments.gui.browser import Browser, Tab, first_line
from serve.environments.gui.site import ORIGIN, Site
from serve.environments.gui.tree import Element, Ids, Marks, Tree, read
from serve.environments.protocol import EnvironmentFailed

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Page, Request

QUIET_MS, QUIET_MOST_MS = 40, 400
NOTES, NOTE_CHARS = 10, 500  # of what is told after one step
ALIVE_S = 1.0  # how long a page may take to show that it is alive
ENDED = ("has been closed", "Connection closed", "Target crashed")  # said by Playwright of what is dead
LOADING_S = 1.5  # how long a step waits for requests that are under way


class Gone(Exception):
    """An element, or the document it stood in, is no longer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the window shows at one moment."""

    url: str
    title: str
    tree: Tree
    png: bytes


class Window:
    """A page of a context, and what happened to it."""

    def __init__(self, browser: Browser, tab: Tab) -> None:
        self.tab, self.page = tab, tab.page
        self.ids = Ids()
        self.notes: list[str] = []  # dialogs, refusals: for the next observation
        self.errors: list[str] = []  # uncaught exceptions of the page's scripts
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._browser, self._world = browser, 0
        self._loading: set[Request] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._listen()

    @classmethod
    async def open(cls, browser: Browser, site: Site, start: str, storage: dict[str, str], limit_s: float) -> "Window":
        """Load a site's page in a fresh context.

        Raises:
            EnvironmentFailed: the page does not load, or its scripts fail while it does.
        """
        from playwright.async_api import Error

        items = [{"name": name, "value": value} for name, value in storage.items()]
        state = {"cookies": [], "origins": [{"origin": ORIGIN, "localStorage": items}]} if items else None
        tab = await browser.tab(state)
        try:
            window = cls(browser, tab)
            tab.gate.site = site
            response = await tab.page.goto(ORIGIN + "/" + start, timeout=limit_s * 1000)
            if response is None or not response.ok:
                status = f"HTTP {response.status}" if response else "no answer"
                raise EnvironmentFailed(f"the page /{start} of {site.folder.name} did not load: {status}")
            await window.settle()
            if window.errors:
                raise EnvironmentFailed(f"the page {site.folder.name} fails while it loads: {window.errors[0]}")
            return window
        except Error as error:
            await browser.release(tab)
            raise EnvironmentFailed(f"the page {site.folder.name} did not load: {first_line(error)}") from error
        except BaseException:
            await browser.release(tab)
            raise

    def take_notes(self) -> list[str]:
        """What was noted since the last call: dialogs, and what was refused."""
        notes, self.notes = self.notes, []
        refused, self.tab.gate.refused = sorted(set(self.tab.gate.refused)), []
        if len(notes) > NOTES:
            notes = [*notes[:NOTES], f"[{len(notes) - NOTES} more notes like these]"]
        notes = [one if len(one) <= NOTE_CHARS else f"{one[:NOTE_CHARS]}... ({len(one)} characters)" for one in notes]
        return notes + [f"refused: {url[:100]} (there is no network here)" for url in refused[:5]]

    def _fail(self, reason: str) -> None:
        if not self.broken.done():
            self.broken.set_result(reason)

    async def check_alive(self, error: Exception) -> None:
        """Whether the page still answers after an error of Playwright's.

        Raises:
            EnvironmentFailed: it does not; says what ended.
        """
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(self.page.title(), ALIVE_S)
            dead = False
        except (Error, TimeoutError):
            dead = True
        if dead or self.broken.done():
            self._fail(f"the page, or its browser, ended: {first_line(error)}")
            raise EnvironmentFailed(self.broken.result()) from error

    def _listen(self) -> None:
        fail = self._fail
        self.page.on("crash", lambda _: fail("the page crashed"))
        self.page.on("close", lambda _: fail("the page was closed, or the browser ended"))
        self.page.on("pageerror", lambda error: self.errors.append(first_line(error)))
        self.page.on("dialog", lambda dialog: self._soon(self._answer(dialog)))
        self.page.on("popup", lambda popup: self._soon(self._refuse(popup)))
        self.page.on("request", lambda request: self._loading.add(request))
        self.page.on("requestfinished", lambda request: self._loading.discard(request))
        self.page.on("requestfailed", lambda request: self._loading.discard(request))
        self.page.on("download", lambda _: self.notes.append("a download was refused"))

    def _soon(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, dialog: "Dialog") -> None:
        """Every dialog is answered with OK; a prompt with the text it proposes."""
        from playwright.async_api import Error

        text, a = dialog.message.strip(), "an" if dialog.type == "alert" else "a"
        if dialog.type == "prompt":
            self.notes.append(f'the page asked in a prompt: "{text}" (answered "{dialog.default_value}")')
        elif dialog.type != "beforeunload":
            self.notes.append(f'the page said in {a} {dialog.type} box: "{text}" (answered OK)')
        with contextlib.suppress(Error):  # it went with its page
            await dialog.accept(dialog.default_value if dialog.type == "prompt" else "")

    async def _refuse(self, popup: "Page") -> None:
        from playwright.async_api import Error

        self.notes.append("the page wanted to open another window: that was refused")
        with contextlib.suppress(Error):
            await popup.close()

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of Chromium's DevTools protocol.

        Raises:
            Gone: what it speaks of is no longer there.
        """
        from playwright.async_api import Error

        try:
            return await self.tab.cdp.send(method, params)
        except Error as error:
            if any(word in str(error) for word in ENDED):
                self._fail(f"the page, its browser or Playwright's driver ended: {first_line(error)}")
                raise
            lost = ("No node", "context", "Could not find", "Node with given id", "navigated", "Inspected target")
            if any(word in str(error) for word in lost) and not self.broken.done():
                raise Gone(first_line(error)) from error
            raise

    async def settle(self) -> None:
        """Wait until nothing loads and the page stands still; at most a second or two."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LOADING_S
        while True:
            try:
                state = await self._quiet()
            except Gone:  # another document came: its own quiet counts
                state = "loading"
            if (state == "complete" and not self._loading and not self._answers) or loop.time() > end:
                return
            await asyncio.sleep(0.02)

    async def _quiet(self) -> str:
        frame = (await self.send("Page.getFrameTree"))["frameTree"]["frame"]
        world = await self.send("Page.createIsolatedWorld", frameId=frame["id"], worldName="clawrl")
        self._world = world["executionContextId"]
        expression = f"({elements.QUIET})({QUIET_MS}, {QUIET_MOST_MS})"
        answer = await self.send(
            "Runtime.evaluate", expression=expression, contextId=self._world, awaitPromise=True, returnByValue=True
        )
        return str(answer["result"].get("value"))

    async def look(self) -> Look:
        """Tree and screenshot of this moment."""
        frames, nodes, snapshot, picture, title = await asyncio.gather(
            self.send("Page.getFrameTree"),
            self.send("Accessibility.getFullAXTree"),
            self.send("DOMSnapshot.captureSnapshot", computedStyles=[]),
            self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True),
            self.page.title(),
        )
        frame = frames["frameTree"]["frame"]
        tree = read(nodes["nodes"], Marks.read(snapshot), self.ids, frame["loaderId"])
        url = frame["url"] + frame.get("urlFragment", "")
        return Look(url=url, title=title, tree=tree, png=base64.b64decode(picture["data"]))

    async def call(self, element: Element, function: str, *arguments: Any) -> Any:
        """Run a function of `elements.py` on an element.

        Raises:
            Gone: the element is no longer there.
        """
        found = await self.send("DOM.resolveNode", backendNodeId=element.node, executionContextId=self._world)
        answer = await self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=function,
            objectId=found["object"]["objectId"],
            arguments=[{"value": one} for one in arguments],
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise EnvironmentFailed(f"{element.label}: {answer['exceptionDetails'].get('text')}")
        return answer["result"].get("value")

    async def scroll_page(self, dx: float, dy: float) -> Any:
        """Scroll the page itself."""
        answer = await self.send(
            "Runtime.evaluate",
            expression=f"({elements.SCROLL}).call(document, {dx}, {dy})",
            contextId=self._world,
            returnByValue=True,
        )
        return answer["result"].get("value")

    async def can_go_back(self) -> bool:
        """Whether the task's site was shown before the present page."""
        history = await self.send("Page.getNavigationHistory")
        index = history["currentIndex"]
        return index > 0 and history["entries"][index - 1]["url"].startswith(ORIGIN)

    async def close(self) -> None:
        """End the context and all in it."""
        await self._browser.release(self.tab)
