"""An environment that can't go on says so with its reason; the next episode has a browser again."""

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path

import psutil
import pytest

from serve.environments.gui import jail
from serve.environments.gui.browser import Browser
from serve.environments.gui.environment import GuiEnvironment
from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import SandboxUnavailable
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.gui.building import act, find, make_task

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_endless_loop_ends_the_step_in_time_and_spoils_no_other_episode(
    browser: Browser, tmp_path: Path
) -> None:
    task = make_task(tmp_path, "<button onclick='for (;;) {}'>Loop</button>", step_s=2)
    stuck, other = GuiEnvironment(browser), GuiEnvironment(browser)
    seen = await stuck.reset(task)
    await other.reset(task)
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match="did not answer within 2 s"):
        await stuck.step(act("click", element=find(seen, "button", "Loop")))
    await stuck.close()
    assert time.monotonic() - began < 9
    assert not (await other.step(act("wait", seconds=0.1))).done
    await other.close()


async def test_a_page_that_never_loads_fails(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="did not load"):
        await GuiEnvironment(browser).reset(make_task(tmp_path, "<script>for (;;) {}</script>", step_s=2))


async def test_a_page_whose_script_fails_while_loading_fails(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="nowhere is not defined"):
        await GuiEnvironment(browser).reset(make_task(tmp_path, "<script>nowhere()</script>"))


async def test_a_missing_page_is_a_fault_of_the_task(browser: Browser, tmp_path: Path) -> None:
    task = make_task(tmp_path, "")
    (tmp_path / "page" / "index.html").unlink()
    with pytest.raises(TaskError, match="page: there is no"):
        await GuiEnvironment(browser).reset(task)


async def test_a_start_that_is_not_there_fails(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="did not load: HTTP 404"):
        await GuiEnvironment(browser).reset(make_task(tmp_path, "", start="nowhere.html"))


@pytest.mark.parametrize(
    ("js", "reason"),
    [
        ("nothing.at.all", "nothing is not defined"),
        ("1", "gave 1: true or false is needed"),
        ("'secret '.repeat(1000)", "gave 'secret secret"),
        ("(() => { for (;;) {} })()", "no answer within"),
        ("this is no JavaScript", "check 'c'"),
    ],
)
async def test_a_check_that_fails_is_a_failure_of_the_environment(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, js: str, reason: str
) -> None:
    monkeypatch.setattr("serve.environments.gui.environment.CHECK_S", 1.0)
    environment = GuiEnvironment(browser)
    await environment.reset(make_task(tmp_path, "<p>x</p>", checks=[{"name": "c", "js": js}]))
    with pytest.raises(EnvironmentFailed, match="check 'c'") as caught:
        await environment.evaluate()
    assert reason in str(caught.value) and str(caught.value).count("secret") < 20
    await environment.close()


async def test_a_crashed_page_and_a_killed_browser_fail_and_the_next_episode_works(
    browser: Browser, tmp_path: Path
) -> None:
    task = make_task(tmp_path, "<button>Fine</button>")
    environment = GuiEnvironment(browser)
    seen = await environment.reset(task)
    crash = asyncio.ensure_future(environment._window.send("Page.crash"))  # type: ignore[union-attr]
    with pytest.raises(EnvironmentFailed, match="crashed"):
        await environment.step(act("wait", seconds=1))
    crash.cancel()
    await environment.close()
    await environment.reset(task)
    started = browser.started
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "bwrap":
                process.kill()
    with pytest.raises(EnvironmentFailed, match=r"browser|closed"):
        await environment.step(act("click", element=find(seen, "button", "Fine")))
    await environment.close()
    seen = await environment.reset(task)
    assert browser.started == started + 1 and find(seen, "button", "Fine")
    await environment.close()


async def test_a_dead_driver_is_replaced(tmp_path: Path) -> None:
    browser, task = Browser(), make_task(tmp_path, "<button>Fine</button>")
    environment = GuiEnvironment(browser)
    await environment.reset(task)
    mine = [one for one in psutil.Process().children() if "node" in one.name()]
    mine[-1].kill()  # the youngest: this browser's
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match="driver ended"):
        await environment.step(act("wait", seconds=1))
    assert time.monotonic() - began < 3
    await environment.close()
    assert find(await environment.reset(task), "button", "Fine")
    await environment.close()
    await browser.close()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (None, "payload: None"), ([1], "payload: "), ({"page": None}, "page: None"), ({"page": "/etc"}, "page: '/etc'"),
        ({"page": ".."}, "page: "), ({"page": "a/b"}, "page: "), ({"page": ""}, "page: "), ({"page": [1]}, "page: "),
        ({"start": 5}, "start: 5"), ({"start": "//x"}, "start: "), ({"start": "x" * 9999}, "start: 9999 characters"),
        ({"storage": [1]}, "storage: "), ({"storage": {"a": 1}}, "storage: "), ({"storage": None}, "storage: None"),
        ({"checks": None}, "checks: at least one"), ({"checks": 5}, "checks: "), ({"checks": [5]}, "checks: 5"),
        ({"checks": []}, "checks: at least one"), ({"checks": [{"name": 1, "js": "true"}]}, "checks: "),
        ({"pages": 5}, "pages: 5"), ({"pages": "a\0b"}, "pages: "), ({"pages": "x" * 9999}, "page: there is no"),
        ({"other": 1}, "other: unknown"),
    ],
)  # fmt: skip
async def test_a_field_of_a_wrong_kind_is_a_fault_of_the_task(browser: Browser, tmp_path: Path, changes, what) -> None:
    task = make_task(tmp_path, "")
    payload = task.payload | changes if isinstance(changes, dict) else changes
    with pytest.raises(TaskError, match=f"t: {what}") as caught:
        await GuiEnvironment(browser).reset(dataclasses.replace(task, payload=payload))
    assert len(str(caught.value)) < 500


async def test_an_instruction_that_is_no_text_is_a_fault_of_the_task(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="t: instruction: 5"):
        await GuiEnvironment(browser).reset(dataclasses.replace(make_task(tmp_path, ""), instruction=5))


async def test_a_step_without_reset_and_a_second_close(browser: Browser) -> None:
    environment = GuiEnvironment(browser)
    with pytest.raises(EnvironmentFailed, match="reset comes first"):
        await environment.step(act("done"))
    await environment.close()
    await environment.close()


@pytest.mark.parametrize("what", ["bwrap", "chromium", "start"])
async def test_without_a_sandbox_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "bwrap":
        monkeypatch.setattr(jail.shutil, "which", lambda name: None)
    elif what == "chromium":
        monkeypatch.setattr(jail, "PROGRAMS", (str(tmp_path / "none"),))
    else:  # bubblewrap is there but may not make a sandbox
        fake = tmp_path / "bwrap"
        fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        fake.chmod(0o755)
        monkeypatch.setattr(jail.shutil, "which", lambda name: str(fake))
    browser = Browser()
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap chromium") as caught:
        await GuiEnvironment(browser).reset(make_task(tmp_path, ""))
    assert what != "start" or "No permissions" in str(caught.value)
    await browser.close()


@pytest.mark.parametrize(("crashes", "alive"), [(2, True), (3, False)])
async def test_a_browser_that_crashes_while_it_starts_is_started_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crashes: int, alive: bool
) -> None:
    program = tmp_path / "crashing"
    count = tmp_path / "count"
    program.write_text(
        f'#!/bin/sh\necho x >> {count}\n[ $(wc -l < {count}) -le {crashes} ] && exit 1\nexec "$0".real "$@"\n'
    )
    program.chmod(0o700)

    def script(folder: Path) -> Path:
        jail.write_script(folder).rename(tmp_path / "crashing.real")
        return program

    monkeypatch.setattr("serve.environments.gui.browser.write_script", script)
    browser = Browser()
    try:
        if alive:
            await browser.release(await browser.tab())
        else:
            with pytest.raises(SandboxUnavailable, match=r"can't start its browser: .* \(3 times\)"):
                await browser.tab()
        assert len(count.read_text().split()) == min(crashes + 1, 3)
    finally:
        await browser.close()
