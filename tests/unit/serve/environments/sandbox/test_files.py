"""None of the host's files is there, and no path that is given to `read` and `write` leads anywhere harmful."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.environments.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file on the host that anybody may read and write."""
    with tempfile.TemporaryDirectory(prefix="clawrl-test-") as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "secret"
        path.write_text("secret")
        path.chmod(0o666)
        yield path


async def test_file_of_the_host_is_not_there(own_box: Sandbox, secret: Path) -> None:
    assert (await own_box.shell(f"cat {secret}", timeout_s=5)).exit_code == 1
    with pytest.raises(FileNotFoundError):
        await own_box.read(str(secret))
    await own_box.write({str(secret): b"changed"})
    assert secret.read_text() == "secret"


HIDDEN = (
    "/etc/shadow",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/etc/ssh",
    "/root",
    "/var",
    "/boot",
    "/srv",
    "/mnt",
    "/sys",
    "/media",
    "/dev/vda",
    "/dev/sda",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/loop0",
    "/dev/net",
    "/oldroot",
    "/newroot",
    "/run/docker.sock",
    str(Path(__file__).resolve()),
    str(Path.home() / "."),
)


@pytest.mark.parametrize("path", HIDDEN)
async def test_path_of_the_host_is_not_there(box: Sandbox, path: str) -> None:
    assert (await box.shell(f"ls -d {path}", timeout_s=5)).exit_code == 2


async def test_home_and_temporary_folders_are_its_own(own_box: Sandbox) -> None:
    result = await own_box.shell("ls /home; ls -A /home/agent /tmp /work /run /dev/shm /opt 2>&1", timeout_s=5)
    assert "agent" in result.stdout
    assert set(result.stdout.split()) <= {
        "agent",
        "/home/agent:",
        "/tmp:",
        "/work:",
        "/run:",
        "/dev/shm:",
        "/opt:",
        "init.pyc",
    }


@pytest.mark.parametrize(
    "climb", ["../" * 40, "/proc/1/root/", "/proc/1/cwd/../", "/proc/self/root/", "/dev/fd/../root/"]
)
async def test_no_way_up(box: Sandbox, secret: Path, climb: str) -> None:
    assert (await box.shell(f"cat {climb}{secret}", timeout_s=5)).exit_code != 0


@pytest.mark.parametrize(
    "path", ["/usr/x", "/usr/bin/x", "/bin/bash", "/etc/passwd", "/etc/x", "/x", "/opt/init.pyc", "/dev/x", "/opt/x"]
)
async def test_what_is_shown_can_not_be_changed(box: Sandbox, path: str) -> None:
    for command in (
        f"echo x > {path}",
        f"rm -f {path} && touch {path}",
        f"mv /work {path}",
        f"chmod 777 {path}",
        f"mount -o remount,rw {path}",
    ):
        assert (await box.shell(command, timeout_s=5)).exit_code != 0, command
    with pytest.raises(OSError):
        await box.write({path: b"x"})


async def test_hard_links_lead_nowhere(box: Sandbox) -> None:
    for path in ("/usr/bin/bash", "/etc/passwd", "/opt/init.pyc", "/proc/1/environ"):
        assert (await box.shell(f"ln -L {path} /work/hard-$$", timeout_s=5)).exit_code != 0


READ = {
    "a link to a file": ("ln -s /usr/bin/true x; ln -s /etc/passwd x2", "x2", None),
    "a link to init's environment": ("ln -s /proc/1/environ x", "x", (ValueError, OSError)),
    "a link to its own memory": ("ln -s /proc/self/mem x", "x", (ValueError, OSError)),
    "a link to its own maps": ("ln -s /proc/self/maps x", "x", (ValueError, OSError)),
    "a link to its own pipe": ("ln -s /proc/self/fd/0 x", "x", (ValueError, OSError)),
    "a link to a pipe of another": ("ln -s /proc/1/fd/1 x", "x", (ValueError, OSError)),
    "a folder that is a link to it": ("ln -s /proc/self x", "x/environ", (ValueError, OSError)),
    "a loop of links": ("ln -s y x; ln -s x y", "x", OSError),
    "a fifo": ("mkfifo x", "x", ValueError),
    "a device": ("ln -s /dev/zero x", "x", ValueError),
    "an endless device": ("ln -s /dev/urandom x", "x", ValueError),
    "a terminal": ("ln -s /dev/ptmx x", "x", ValueError),
    "a socket": (
        "/usr/bin/python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('x')\"",
        "x",
        (ValueError, OSError),
    ),
    "a folder": ("mkdir x", "x", IsADirectoryError),
    "a sparse file of 10 MB": ("truncate -s 10M x", "x", ValueError),
    "a file with a file for a folder": ("touch x", "x/y", NotADirectoryError),
}


@pytest.mark.parametrize("name", READ)
async def test_read_is_neither_led_astray_nor_kept_waiting(box: Sandbox, name: str) -> None:
    made, path, error = READ[name]
    folder = f"/work/{abs(hash(name))}"
    assert (await box.shell(f"mkdir {folder}; cd {folder}; {made}", timeout_s=5)).exit_code == 0
    if error is None:
        assert b"agent" in await box.read(f"{folder}/{path}")  # of the sandbox's own
        assert b"root:x:0:0:root:/root:/bin/bash" not in await box.read(f"{folder}/{path}")
    else:
        with pytest.raises(error):
            await box.read(f"{folder}/{path}")


WRITE = {
    "a link to a file": "ln -s /etc/passwd x",
    "a link to a file of the sandbox": "echo old > old; ln -s old x",
    "a hanging link": "ln -s /work/nowhere x",
    "a fifo": "mkfifo x",
    "a fifo in a folder that is read-only": "mkfifo x; chmod 0555 .",
    "a link in a folder that is read-only": "ln -s /work/other x; chmod 0555 .",
    "a file that is read-only": "echo old > x; chmod 0 x",
    "a folder that nobody may enter": "chmod 0 .",
}


@pytest.mark.parametrize("name", WRITE)
async def test_write_replaces_what_stands_there(box: Sandbox, name: str) -> None:
    folder = f"/work/{abs(hash(name))}"
    assert (await box.shell(f"mkdir {folder}; cd {folder}; {WRITE[name]}; cd /work", timeout_s=5)).exit_code == 0
    await box.write({f"{folder}/x": b"new"})
    assert await box.read(f"{folder}/x") == b"new"
    kept = await box.shell(
        f"cd {folder}; test ! -L x -a -f x && test ! -e old -o x$(cat old 2>/dev/null) = xold", timeout_s=5
    )
    assert kept.exit_code == 0


@pytest.mark.parametrize(
    "path",
    ["/proc/1/oom_score_adj", "/proc/self/comm", "/proc/1/mem", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"],
)
async def test_write_does_not_speak_to_the_kernel(box: Sandbox, path: str) -> None:
    with pytest.raises((OSError, ValueError)):
        await box.write({path: b"1"})
    await box.shell(f"ln -sfn {Path(path).parent} /work/link", timeout_s=5)
    with pytest.raises((OSError, ValueError)):
        await box.write({f"/work/link/{Path(path).name}": b"1"})


async def test_a_folder_or_file_in_the_way_is_the_requests_own_error(box: Sandbox) -> None:
    await box.shell("mkdir -p /work/in-the-way/x; touch /work/file", timeout_s=5)
    for path in ("/work/in-the-way", "/work/file/x", "/work/" + "n" * 300, "/work/a\0b"):
        with pytest.raises((OSError, ValueError)):
            await box.write({path: b"new"})
    assert (await box.run(["true"], timeout_s=5)).exit_code == 0


async def test_two_sandboxes_share_nothing_that_lasts(box: Sandbox, own_box: Sandbox) -> None:
    code = "import _multiprocessing as m; m.SemLock(1, 1, 1, '/shared', False)"
    for path in ("/work", "/tmp", "/home/agent", "/dev/shm", "/run"):
        await box.write({f"{path}/left": b"here"})
        with pytest.raises(FileNotFoundError):
            await own_box.read(f"{path}/left")
    assert (await box.python(code, keep=False, timeout_s=5)).error is None
    assert (await own_box.python(code, keep=False, timeout_s=5)).error is None  # the name is not taken here
