"""Where a sandbox can start, and what is said where it can't."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.environments.sandbox import Sandbox, SandboxUnavailable, bubblewrap, control_group, require, staging, walls
from serve.environments.tasks import Limits

NOBODY = 65534


@pytest.fixture
def anew() -> Iterator[None]:
    """What was found out about this machine is forgotten, before and after."""
    found = (
        require,
        bubblewrap._program,
        staging.folder,
        staging.init_file,
        staging.filter_file,
        staging.etc_folder,
        staging.package_files,
    )
    for one in found:
        one.cache_clear()
    yield
    for one in found:
        one.cache_clear()


@pytest.mark.usefixtures("anew")
async def test_without_bubblewrap_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        await Sandbox.start(Limits())


@pytest.mark.usefixtures("anew")
def test_without_python_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "PYTHON", "/nonexistent/python3")
    with pytest.raises(SandboxUnavailable, match="apt-get install python3"):
        require()


@pytest.mark.usefixtures("anew")
def test_bubblewrap_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="clawrl-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "bwrap"
        program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with pytest.raises(SandboxUnavailable, match=r"No permissions.*unprivileged_userns_clone"):
            require()


@pytest.mark.usefixtures("anew")
def test_folder_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / f"clawrl-sandbox-{os.geteuid()}"
    made.mkdir()
    made.chmod(0o777)
    with pytest.raises(SandboxUnavailable, match="TMPDIR"):
        require()
    made.rmdir()
    made.symlink_to("/tmp")
    with pytest.raises(SandboxUnavailable, match="TMPDIR"):
        require()


async def test_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ValueError, match="'no_such_package' is not installed"):
        await Sandbox.start(Limits(), packages=("no_such_package",))


async def test_packages_are_there_and_read_only() -> None:
    made = await Sandbox.start(Limits(), packages=("pytest",))
    try:
        result = await made.run(["/usr/bin/python3", "-m", "pytest", "--version"], timeout_s=20)
        assert result.exit_code == 0, result
        assert (await made.python("import pytest; pytest.__file__", keep=False, timeout_s=10)).value.startswith(
            "'/opt/packages/"
        )
        assert (await made.shell("echo x > /opt/packages/pytest/__init__.py", timeout_s=5)).exit_code != 0
    finally:
        await made.close()


def test_walls_say_what_stands() -> None:
    stand = walls()
    assert {"namespaces", "user", "system_calls", "memory", "processes"} == set(stand)
    places = control_group.usable()
    assert (stand["memory"] == "control group") is not isinstance(places, str)


async def test_without_control_groups_all_other_walls_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_group, "usable", lambda: "none can be made here")
    assert "none can be made here" in walls()["memory"]
    made = await Sandbox.start(Limits(memory_mb=128))
    try:
        result = await made.run(
            ["/usr/bin/python3", "-c", "x = bytearray(200 << 20); import time; time.sleep(9)"], timeout_s=8
        )
        assert "128 MB" in result.ended
        assert (await made.run(["echo", "here"], timeout_s=5)).stdout == "here\n"
    finally:
        await made.close()


async def test_control_group_only_if_asked_for() -> None:
    for grouped in (True, False):
        made = await Sandbox.start(Limits(), grouped=grouped)
        try:
            inside = (await made.run(["cat", "/proc/self/cgroup"], timeout_s=5)).stdout
            assert (control_group.NAME in inside) is (grouped and not isinstance(control_group.usable(), str))
        finally:
            await made.close()


def tree(folder: Path, controllers: str | None) -> None:
    """What version 2 shows of a group."""
    folder.mkdir(parents=True, exist_ok=True)
    if controllers is not None:
        (folder / "cgroup.subtree_control").write_text(controllers)


@pytest.mark.parametrize(
    "own, parent, found",
    [
        ("memory pids", "memory pids", "own"),
        ("", "cpu memory pids", "parent"),
        ("cpu", "cpu", None),
        ("", "memory", None),
    ],
)
def test_version_2_below_or_beside_its_own_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, parent: str, found: str | None
) -> None:
    tree(tmp_path / "user.slice" / "shell.scope", own)
    tree(tmp_path / "user.slice", parent)
    monkeypatch.setattr(control_group, "_mounts", lambda: {"": tmp_path})
    monkeypatch.setattr(control_group, "_own", lambda: {"": "/user.slice/shell.scope"})
    places = {"own": tmp_path / "user.slice" / "shell.scope", "parent": tmp_path / "user.slice"}
    assert [place for place, _ in control_group._places()][:1] == ([places[found]] if found else [])


def test_groups_of_a_dead_process_are_swept_and_others_kept() -> None:
    places = control_group.usable()
    if isinstance(places, str):
        return
    dead = [place / f"{control_group.NAME}-{os.getpid()}-1-1" for place in places]  # another process had our number
    alive = control_group.make(Limits())
    assert alive is not None
    for folder in set(dead):
        folder.mkdir()
    control_group._sweep(places)
    assert not any(folder.exists() for folder in dead) and all(folder.exists() for folder in alive.folders)
    assert alive.remove()


ORDINARY = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
sys.path += sys.argv[2].split(os.pathsep)
from serve.environments.sandbox import Sandbox, walls
from serve.environments.tasks import Limits

async def main():
    print(os.geteuid(), walls()["user"])
    made = await Sandbox.start(Limits(memory_mb=128, processes=16), packages=("iniconfig",))
    print((await made.shell("echo $((6 * 7)) $(id -u)", timeout_s=5)).stdout.strip())
    print((await made.python("import iniconfig; 6 * 7", keep=True, timeout_s=5)).value)
    print((await made.run(["cat"], stdin=b"given", timeout_s=5)).stdout)
    print((await made.run(["bash", "-c", "b() { b | b; }; b"], timeout_s=0.5)).timed_out)
    bomb = "x = bytearray(200 << 20); import time; time.sleep(9)"
    print((await made.run(["/usr/bin/python3", "-c", bomb], timeout_s=5)).ended)
    print((await made.shell("ls -d %s /root; cat /proc/1/environ" % sys.argv[1], timeout_s=5)).exit_code)
    await made.close()

asyncio.run(main())
"""


def test_ordinary_user() -> None:
    """Our own files are copied to where he can read them, if we are root; the same program runs as he."""
    with tempfile.TemporaryDirectory(prefix="clawrl-test-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = Path(__file__).parents[5]
        shutil.copytree(root / "serve/environments/sandbox", folder / "serve/environments/sandbox")
        for file in (
            "serve/__init__.py",
            "serve/environments/__init__.py",
            "serve/environments/protocol.py",
            "serve/environments/scratch.py",
            "serve/environments/tasks.py",
        ):
            shutil.copyfile(root / file, folder / file)
        packages = folder / "packages"
        packages.mkdir()
        for one in ("pyseccomp.py", "pluggy", "iniconfig"):
            found = next(path for place in sys.path if (path := Path(place) / one).exists())
            (shutil.copytree if found.is_dir() else shutil.copyfile)(found, packages / one)
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o777)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        python = bubblewrap.PYTHON if user else sys.executable
        argv = [*user, python, "-c", ORDINARY, str(folder), str(packages)]
        env = {"PATH": os.environ["PATH"], "TMPDIR": str(folder / "tmp")}
        done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        uid = NOBODY if user else os.geteuid()
        said = "a process was killed: together they held more than 128 MB of memory"
        assert done.stdout.splitlines() == [f"{uid} ours", "42 1000", "42", "given", "True", said, "1"]
        subprocess.run([*user, "rm", "-rf", *map(str, (folder / "tmp").iterdir())], check=True)


@pytest.mark.parametrize("name", ["../../../../etc/ssh", "/etc/ssh", "..", "a/b", "", "serve", "tests", "x" * 90])
def test_what_is_no_installed_package_is_not_shown(name: str) -> None:
    with pytest.raises(ValueError, match=r"no name of a Python package|is not installed"):
        staging.package_files(name)


async def test_packages_that_only_root_can_read_are_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hidden_package").mkdir()
    (tmp_path / "hidden_package" / "__init__.py").write_text("answer = 42\n")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(staging, "places", lambda: [str(tmp_path)])
    (shown,) = staging.package_files("hidden_package")
    made = await Sandbox.start(Limits(), packages=("hidden_package",))
    try:
        result = await made.python("import hidden_package; hidden_package.answer", keep=False, timeout_s=5)
        assert result.value == "42", result
    finally:
        await made.close()
        if os.geteuid() == 0:
            assert shown.is_relative_to(staging.folder())
            shutil.rmtree(shown.parent)
