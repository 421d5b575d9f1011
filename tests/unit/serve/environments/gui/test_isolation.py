"""What a page can't reach: other hosts, this host, its files; what an episode leaves to the next: nothing."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from serve.environments.gui import jail, make
from serve.environments.gui.browser import Browser
from serve.environments.gui.environment import GuiEnvironment
from serve.environments.gui.site import PAGES, Site
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.gui.building import act, find, make_task

loop = pytest.mark.asyncio(loop_scope="module")

TRY = """<p id=out>-</p><script>
const note = (name) => [() => note.all.push(name + ' ok'), () => note.all.push(name + ' failed')];
note.all = [];
const tried = (name, start) => new Promise((done) => {
  const [ok, failed] = note(name);
  try { start(() => { ok(); done(); }, () => { failed(); done(); }); } catch (error) { failed(); done(); }
});
const hosts = ['http://127.0.0.1:PORT/', 'http://localhost:PORT/', 'http://other.example/', 'https://192.0.2.1/'];
Promise.all(hosts.flatMap((host) => [
  tried('fetch', (ok, failed) => fetch(host, {mode: 'no-cors'}).then(ok, failed)),
  tried('xhr', (ok, failed) => {
    const x = new XMLHttpRequest();
    Object.assign(x, {onload: ok, onerror: failed});
    x.open('GET', host);
    x.send();
  }),
  tried('img', (ok, failed) => { const i = new Image(); i.onload = ok; i.onerror = failed; i.src = host + 'x.png'; }),
  tried('socket', (ok, failed) => {
    Object.assign(new WebSocket(host.replace('http', 'ws')), {onopen: ok, onerror: failed, onclose: failed});
  }),
]).concat([
  tried('up', (ok, failed) => fetch('/..%2fsecret.txt').then((r) => r.ok ? ok() : failed(), failed)),
  tried('link', (ok, failed) => fetch('/link.txt').then((r) => r.ok ? ok() : failed(), failed)),
  tried('file', (ok, failed) => fetch('file:///etc/passwd').then(ok, failed)),
])).then(() => { out.textContent = note.all.join(', '); });
</script>"""


@loop
async def test_nothing_outside_can_be_reached(browser: Browser, tmp_path: Path) -> None:
    reached: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    task = make_task(tmp_path, TRY.replace("PORT", str(port)))
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "page" / "link.txt").symlink_to(tmp_path / "secret.txt")
    environment = GuiEnvironment(browser)
    await environment.reset(task)
    result = await environment.step(act("wait", seconds=0.5))
    await environment.close()
    server.close()
    assert result.observation.text.count(" failed") == 19 and " ok" not in result.observation.text
    assert reached == []


@loop
@pytest.mark.parametrize("target", ["http://other.example/", "file:///etc/passwd", "http://127.0.0.1:1/"])
async def test_a_link_that_leads_out_is_not_followed(browser: Browser, tmp_path: Path, target: str) -> None:
    environment = GuiEnvironment(browser)
    seen = await environment.reset(
        make_task(tmp_path, f'<a href="{target}">Out</a><a href="{target}" target=_blank>New</a>')
    )
    for name in ("Out", "New"):
        result = await environment.step(act("click", element=find(seen, "link", name)))
        assert result.observation.facts["url"] == "http://task.local/" and "root:" not in result.observation.text
        assert 'link "Out"' in result.observation.text
    await environment.close()


@loop
async def test_the_kernel_keeps_the_browser_off_the_network_and_its_files_away(
    browser: Browser, tmp_path: Path
) -> None:
    environment = GuiEnvironment(browser)
    await environment.reset(make_task(tmp_path, "<p>x</p>"))
    mine = Path("/proc/self/ns/net").readlink()
    inside = [one for one in psutil.Process().children(recursive=True) if _is_chromium(one)]
    assert inside and all(Path(f"/proc/{one.pid}/ns/net").readlink() != mine for one in inside)
    assert all(not Path(f"/proc/{one.pid}/root/home").exists() for one in inside)
    assert all(Path(f"/proc/{one.pid}/environ").read_bytes().count(b"=") <= 8 for one in inside if one.pid)
    await environment.close()


@loop
async def test_an_episode_leaves_nothing_to_the_next(browser: Browser, tmp_path: Path) -> None:
    html = """<p id=p></p><script>p.textContent = 'found ' + localStorage.length + document.cookie;
    localStorage.a = 1; document.cookie = 'b=2'</script>"""
    environment = GuiEnvironment(browser)
    for _ in range(2):
        assert '"found 0"' in (await environment.reset(make_task(tmp_path, html))).text
    await environment.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://task.local/../secret.txt", "http://task.local/%2e%2e/secret.txt", "http://task.local/..%2fsecret.txt",
        "http://task.local//etc/passwd", "http://task.local/a%00b", "http://task.local:81/index.html",
        "https://task.local/index.html", "http://task.local.evil.example/index.html", "http://a@task.local/index.html",
        "http://task.local/_kit/../../browser.py", "http://task.local/link", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_only_files_of_the_folder_are_found(tmp_path: Path, url: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("x")
    (tmp_path / "site" / "link").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "secret.txt").write_text("secret")
    site = Site(tmp_path / "site")
    found = (site.find("http://task.local/index.html?x=1#y"), site.find("http://task.local/"))
    assert found == (tmp_path / "site" / "index.html",) * 2
    assert site.find(url) is None


CHILD = """
import asyncio, sys
from serve.environments import gui
from serve.environments.gui.browser import shared
async def main():
    environment = gui.make()
    await environment.reset(gui.load()[0])
    print("ready", flush=True)
    if sys.argv[1] == "close":
        await environment.close()
        await shared().close()
        print("closed", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_no_chromium_is_left(ending: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, ending], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    if ending == "kill":
        started = psutil.Process(child.pid).children(recursive=True)
        assert any(_is_chromium(one) for one in started)
        child.send_signal(signal.SIGKILL)
    else:
        assert child.stdout.readline() == "closed\n"
        started = psutil.Process(child.pid).children(recursive=True)
        assert not any(_is_chromium(one) for one in started)
        child.kill()
    child.wait()
    _, left = psutil.wait_procs(started, timeout=10)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def _is_chromium(process: psutil.Process) -> bool:
    try:
        return process.name() == "chromium"
    except psutil.NoSuchProcess:
        return False


CHECK = {"name": "x", "js": "fetch('/secret.txt').then((r) => r.text())"}


@loop
async def test_only_pages_below_the_folder_that_is_served_are_loaded(browser: Browser, tmp_path: Path) -> None:
    served, other = tmp_path / "served", tmp_path / "other"
    for folder in (served / "mine", other, tmp_path / "servedtoo"):
        folder.mkdir(parents=True)
        make_task(folder, "<p>x</p>")
    (other / "page" / "secret.txt").write_text("secret")
    (served / "out").symlink_to(other)
    (served / "mine" / "linked").symlink_to(other / "page")
    environment = GuiEnvironment(browser, served)
    task = make_task(served / "mine", "<p>x</p>", checks=[CHECK])
    await environment.reset(task)
    ours = {key: value for key, value in task.payload.items() if key != "pages"} | {"page": "todo"}
    for payload in (ours, ours | {"pages": ""}, ours | {"pages": str(PAGES)}):
        await environment.reset(dataclasses.replace(task, payload=payload))
    outside = [
        other,
        served / ".." / "other",
        served / "out",
        tmp_path / "servedtoo",
        tmp_path,
        Path("/"),
        Path("other"),
    ]
    for pages in outside:
        with pytest.raises(TaskError, match=r"pages: .* is not served here"):
            await environment.reset(dataclasses.replace(task, payload=task.payload | {"pages": str(pages)}))
    for anywhere in (environment, GuiEnvironment(browser)):
        with pytest.raises(TaskError, match="page: 'linked' leads out of"):
            await anywhere.reset(dataclasses.replace(task, payload=task.payload | {"page": "linked"}))
    await environment.close()


@loop
async def test_a_link_in_a_page_leads_nowhere(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret " * 1000)
    check = CHECK | {"js": "fetch('/secret.txt').then((r) => r.status === 404)"}
    task = make_task(tmp_path, "<p>x</p>", checks=[check])
    (tmp_path / "page" / "secret.txt").symlink_to(tmp_path / "secret.txt")
    environment = GuiEnvironment(browser)
    await environment.reset(task)
    assert (await environment.evaluate()).solved
    (tmp_path / "page" / "index.html").unlink()
    (tmp_path / "page" / "index.html").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(TaskError, match="page: 'page' leads out of"):
        await environment.reset(task)
    await environment.close()


def test_make_passes_the_folder_on() -> None:
    environment = make(SimpleNamespace(pages=Path("/srv/pages")))
    assert environment._pages == Path("/srv/pages") and make()._pages is None  # type: ignore[attr-defined]


def test_every_memory_file_system_of_the_browser_has_a_size() -> None:
    words = jail.command()
    mounts = [number for number, word in enumerate(words) if word == "--tmpfs"]
    assert {words[number + 1] for number in mounts} == {"/dev/shm", "/run", "/tmp"}
    assert all(words[number - 2] == "--size" and int(words[number - 1]) <= 2**29 for number in mounts)
