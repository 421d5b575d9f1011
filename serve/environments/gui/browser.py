"""One Chromium per process, shared by its episodes; each episode has a context (cookies, storage, page) of its own.

What it does: `Browser` starts Chromium in its jail (`jail.py`) when first asked for a tab, notices when it died,
and starts another for the next episode. `shared()` is the running event loop's browser.
What it leaves out: what happens in a context (`window.py`); limits on the number of episodes at once (the pool's).
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve.environments.gui.elements import STEADY
from serve.environments.gui.jail import unavailable, write_script
from serve.environments.gui.site import Gate
from serve.environments.protocol import EnvironmentFailed
from serve.environments.scratch import scratch

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chromium
    from playwright.async_api import BrowserContext, CDPSession, Page, Playwright

SIZE = {"width": 1024, "height": 768}  # of the screen, in pixels; a screenshot's too
START_S = 30.0
STARTS = 3  # Chromium crashes at one start in a hundred, all by itself
CLOSE_S = 5.0
FLAGS = (
    # Chromium's own sandbox needs privileges that root in a container, and many hosts, do not have; bubblewrap around
    # the whole browser is the sandbox here, for every user.
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One origin a context: neither processes of other sites nor spare ones are needed.
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,SpareRendererForSitePerProcess,BackForwardCache,"
    "OptimizationHints,MediaRouter,Translate,DialMediaRouteProvider",
    "--in-process-gpu",  # there is no GPU: a process less
    "--js-flags=--max-old-space-size=256",  # MB of one page's JavaScript
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
)
CONTEXT: dict[str, Any] = {
    "viewport": SIZE,
    "device_scale_factor": 1,
    "locale": "en-US",
    "timezone_id": "UTC",
    "color_scheme": "light",
    "reduced_motion": "reduce",
    "service_workers": "block",
    "accept_downloads": False,
}


@dataclass(frozen=True, slots=True)
class Tab:
    """A fresh context with its only page, blank yet."""

    context: "BrowserContext"
    page: "Page"
    cdp: "CDPSession"
    gate: Gate


class Browser:
    """A Chromium that is there when it is needed."""

    def __init__(self) -> None:
        self.started = 0  # how often a Chromium was started
        self._driver: Playwright | None = None
        self._chromium: Chromium | None = None
        self._spare: asyncio.Task[Tab] | None = None
        self._lock = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """A Chromium runs and answers."""
        return self._chromium is not None and self._chromium.is_connected()

    async def tab(self, storage: dict[str, Any] | None = None) -> Tab:
        """A fresh context with one blank page; `storage` is Playwright's storage state.

        Raises:
            SandboxUnavailable: bubblewrap or Chromium is missing or can't be started here.
            EnvironmentFailed: the browser died while it made the context.
        """
        chromium = await self._running()
        spare = None
        if storage is None:
            spare, self._spare = self._spare, None
        try:
            return await spare if spare else await _fresh(chromium, storage)
        except EnvironmentFailed:
            await self.discard()
            raise

    def prepare(self) -> None:
        """Begin to make a tab for the next episode, so that it need not wait for a process of its own."""
        if self._spare is None and self._chromium is not None and self.alive:
            self._spare = asyncio.ensure_future(_fresh(self._chromium, None))
            self._spare.add_done_callback(lambda task: task.cancelled() or task.exception())  # told to whoever takes it

    async def release(self, tab: Tab) -> None:
        """Close a context. A browser that can't do so in time is ended, with all its episodes."""
        from playwright.async_api import Error

        try:
            await asyncio.wait_for(tab.context.close(), CLOSE_S)
        except (Error, TimeoutError):
            await self.discard()

    async def discard(self) -> None:
        """End this Chromium; the next context gets a new one."""
        chromium, self._chromium = self._chromium, None
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.cancel()
            await asyncio.wait({spare})
        if chromium is not None:
            await _within(chromium.close())

    async def close(self) -> None:
        """End Chromium and Playwright's driver."""
        async with self._lock:
            await self.discard()
            driver, self._driver = self._driver, None
            if driver is not None:
                await _within(driver.stop())

    async def _running(self) -> "Chromium":
        async with self._lock:
            if self._chromium is None or not self._chromium.is_connected():
                await self.discard()
                self._chromium = await self._start()
                self.started += 1
            return self._chromium

    async def _start(self) -> "Chromium":
        from playwright.async_api import async_playwright

        with scratch("gui") as folder:
            script = write_script(folder)
            for _ in range(STARTS):
                if self._driver is None:
                    self._driver = await async_playwright().start()
                try:
                    return await _launch(self._driver, script)
                except Exception as error:  # boundary: whatever Playwright can't start; it may itself be dead
                    driver, self._driver, reason = self._driver, None, _reason(error)
                    await _within(driver.stop())
        raise unavailable(f"{reason} ({STARTS} times)")


async def _launch(driver: "Playwright", script: Path) -> "Chromium":
    starting = driver.chromium.launch(executable_path=script, args=list(FLAGS), timeout=START_S * 1000)
    return await asyncio.wait_for(starting, START_S + 5)


async def _fresh(chromium: "Chromium", storage: dict[str, Any] | None) -> Tab:
    from playwright.async_api import Error

    async def make() -> Tab:
        context = await chromium.new_context(**CONTEXT, storage_state=storage)
        try:
            gate = Gate()
            await gate.guard(context)
            await context.add_init_script(STEADY)
            page = await context.new_page()
            return Tab(context, page, await context.new_cdp_session(page), gate)
        except BaseException:
            await _within(context.close())
            raise

    try:
        return await asyncio.wait_for(make(), START_S)
    except (Error, TimeoutError) as error:
        raise EnvironmentFailed(f"the browser gave no new context: {first_line(error)}") from error


async def _within(ending: Any) -> None:
    """Wait for the end of something that may be dead already."""
    from playwright.async_api import Error

    # what does not end in time ends with the driver, which kills its browser's process group
    with contextlib.suppress(Error, TimeoutError):
        await asyncio.wait_for(ending, CLOSE_S)


def first_line(error: BaseException) -> str:
    """An error's first line, short enough for a reason."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _reason(error: BaseException) -> str:
    """Why Chromium did not start: what bubblewrap said, if anything."""
    said = [line.split("[err]")[-1].strip() for line in str(error).splitlines() if "bwrap:" in line]
    return said[0] if said else first_line(error)


_SHARED: dict[int, tuple[asyncio.AbstractEventLoop, Browser]] = {}


def shared() -> Browser:
    """The browser of the running event loop; made when first asked for."""
    loop = asyncio.get_running_loop()
    for key in [key for key, (other, _) in _SHARED.items() if other.is_closed()]:
        del _SHARED[key]
    return _SHARED.setdefault(id(loop), (loop, Browser()))[1]
