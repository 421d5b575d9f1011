"""Nothing that ran in a sandbox outlives what it was asked for: not a process, not a folder, not a control group."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.environments.sandbox import Sandbox, SandboxDied, control_group
from serve.environments.tasks import Limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

STAY = {
    "in the background": "sleep 77 &",
    "without hang-up": "nohup sleep 77 >/dev/null 2>&1 &",
    "in a session": "setsid sleep 77 &",
    "disowned": "sleep 77 & disown -a",
    "forked twice": (
        "/usr/bin/python3 -c 'import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
        "time.sleep(77)'"
    ),
    "with all signals ignored": "(trap '' HUP INT TERM QUIT; setsid bash -c 'sleep 77; sleep 77' &)",
    "stopped": "bash -c 'kill -STOP $$; sleep 77' &",
    "holding the output": "sleep 77 & sleep 77 >&2 &",
}
ALONE = "cat /proc/[0-9]*/comm"


@pytest.mark.parametrize("name", STAY)
async def test_run_ends_what_it_left(box: Sandbox, name: str) -> None:
    await box.shell("(setsid tail -f /dev/null &) ", timeout_s=5)
    begun = time.monotonic()
    assert (await box.run(["bash", "-c", f"{STAY[name]}\nsleep 0.05; echo done"], timeout_s=5)).stdout == "done\n"
    assert time.monotonic() - begun < 2
    left = (await box.run(["bash", "-c", ALONE], timeout_s=5)).stdout.split()
    assert "sleep" not in left and "tail" in left  # of the shell's it ends nothing


@pytest.mark.parametrize("name", STAY)
async def test_clear_ends_everything(box: Sandbox, name: str) -> None:
    await box.shell(f"{STAY[name]}\nsleep 0.05", timeout_s=5)
    await box.write({"/work/kept": b"kept"})
    await box.clear()
    assert sorted((await box.run(["bash", "-c", ALONE], timeout_s=5)).stdout.split()) == ["cat", "python3"]
    assert await box.read("/work/kept") == b"kept"


async def test_clear_ends_a_bomb(own_box: Sandbox) -> None:
    await own_box.shell("b() { b | b & }; b", timeout_s=2)
    await own_box.clear()
    assert sorted((await own_box.run(["bash", "-c", ALONE], timeout_s=5)).stdout.split()) == ["cat", "python3"]


def inside(pid: int) -> list[int]:
    """All processes below this one, on the host."""
    try:
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(below for child in children for below in inside(child))]


def gone(pids: list[int], within_s: float = 5) -> bool:
    """Whether none of them is there any more, but as a name that its parent has not read yet."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if {state(pid) for pid in pids} <= {"Z", ""}:
            return True
        time.sleep(0.01)
    return False


def state(pid: int) -> str:
    """R, S, Z ...; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_close_ends_everything_on_the_host() -> None:
    made = await Sandbox.start(Limits())
    await made.shell("".join(f"{one}\n" for one in STAY.values()), timeout_s=5)
    await made.python("1", keep=True, timeout_s=5)
    pids = inside(made.pid)
    assert len(pids) > 8
    await made.close()
    await made.close()
    assert gone([made.pid, *pids], 2)
    with pytest.raises(SandboxDied):
        await made.run(["true"], timeout_s=5)


async def test_a_sandbox_that_dies_is_said_to_have_died() -> None:
    made = await Sandbox.start(Limits())
    asked = asyncio.create_task(made.run(["sleep", "60"], timeout_s=60))
    await asyncio.sleep(0.1)
    os.kill(inside(made.pid)[0], signal.SIGKILL)
    with pytest.raises(SandboxDied):
        await asked
    await made.close()


async def test_request_that_is_cancelled_ends_the_sandbox() -> None:
    made = await Sandbox.start(Limits())
    pids = [made.pid, *inside(made.pid)]
    asked = asyncio.create_task(made.run(["sleep", "60"], timeout_s=60))
    await asyncio.sleep(0.05)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not made.alive and gone(pids)


async def test_start_that_is_cancelled_leaves_nothing() -> None:
    before = inside(os.getpid())
    for wait_s in (0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03):
        asked = asyncio.create_task(Sandbox.start(Limits()))
        await asyncio.sleep(wait_s)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await asked).close()  # it was quicker
    assert gone([pid for pid in inside(os.getpid()) if pid not in before])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's, of a loop that is gone
async def test_sandbox_ends_with_the_thread_that_started_it() -> None:
    made: list[Sandbox] = []
    pids: list[int] = []

    def start() -> None:
        async def one() -> None:
            made.append(await Sandbox.start(Limits()))
            pids.extend((made[0].pid, *inside(made[0].pid)))

        asyncio.run(one())

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert gone(pids)
    until = time.monotonic() + 5
    while made[0]._group is not None and not made[0]._group.remove() and time.monotonic() < until:
        time.sleep(0.01)  # whoever started it and left takes its control group away himself
    made.clear()
    gc.collect()


HOLDER = """
import asyncio, os
from serve.environments.sandbox import Sandbox
from serve.environments.tasks import Limits

async def main():
    made = [await Sandbox.start(Limits(), warm=("shell", "python")) for _ in range(3)]
    for one in made:
        await one.shell({stay!r}, timeout_s=5)
    print("ready", os.getpid(), flush=True)
    {then}

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder that `nobody` can look into."""
    with tempfile.TemporaryDirectory(prefix="clawrl-test-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def hold(folder: Path, then: str) -> subprocess.Popen:
    """A process that holds three sandboxes."""
    code = HOLDER.format(stay="sleep 77 & setsid sleep 77 & (trap '' TERM HUP INT; setsid sleep 77 &)", then=then)
    env = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline().startswith("ready")
    return holder


def groups_of(pid: int) -> list[Path]:
    """Control groups that a process made."""
    places = control_group.usable()
    return [] if isinstance(places, str) else [g for p in set(places) for g in p.glob(f"{control_group.NAME}-{pid}-*")]


async def test_nothing_remains_when_the_host_process_is_killed(folder: Path) -> None:
    holder = hold(folder, "await asyncio.sleep(60)")
    pids = inside(holder.pid)
    assert len(pids) >= 3 * 6
    holder.kill()
    holder.communicate()
    assert gone(pids)
    places = control_group.usable()
    if not isinstance(places, str):
        assert len(groups_of(holder.pid)) > 0  # the next process that starts one takes them away
        control_group._sweep(places)
        assert groups_of(holder.pid) == []
    assert left(folder)


def left(folder: Path) -> bool:
    """That only finished files are there, which the next process uses again."""
    (staged,) = folder.iterdir()
    names = sorted(path.name.partition("-")[0] for path in staged.iterdir())
    assert names == ["etc", "filter", "init"]
    return True


async def test_nothing_remains_after_close(folder: Path) -> None:
    holder = hold(folder, "[await one.close() for one in made]; print('closed', flush=True); await asyncio.sleep(60)")
    assert holder.stdout is not None and holder.stdout.readline() == "closed\n"
    assert gone(inside(holder.pid))
    assert groups_of(holder.pid) == []
    assert left(folder)
    holder.kill()
    holder.communicate()
