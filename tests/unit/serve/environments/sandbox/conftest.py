"""One sandbox for the attempts of a file that do not disturb each other, and what is to be found after each file."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from serve.environments.sandbox import Sandbox, control_group
from serve.environments.tasks import Limits

LIMITS = Limits(memory_mb=256, processes=32, disk_mb=16, episode_s=120)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    """For attempts that leave it as it was."""
    made = await Sandbox.start(LIMITS)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_box() -> AsyncIterator[Sandbox]:
    """For attempts that may wreck it."""
    made = await Sandbox.start(LIMITS)
    yield made
    await made.close()


def bubblewraps() -> list[int]:
    """Our children that hold a sandbox."""
    ids = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = [int(one) for file in ids for one in file.read_text().split()]
    return [pid for pid in found if b"bwrap" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def groups() -> list[Path]:
    """Our control groups."""
    places = control_group.usable()
    places = () if isinstance(places, str) else places
    return [found for place in set(places) for found in place.glob(f"{control_group.NAME}-{os.getpid()}-*")]


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """After the tests of a file there is none of their sandboxes, nor its control group."""
    yield
    until = time.monotonic() + 5
    while (bubblewraps() or groups()) and time.monotonic() < until:
        time.sleep(0.01)
    assert bubblewraps() == []
    assert groups() == []
