"""One browser for all tests of a module."""

from collections.abc import AsyncIterator

import pytest_asyncio

from serve.environments.gui.browser import Browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    browser = Browser()
    yield browser
    await browser.close()
