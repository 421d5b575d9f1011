"""How a sandbox is started: bubblewrap's command line, and whether one can start on this machine at all.

What it leaves out: what happens inside (`init.py`), how it is spoken to (`sandbox.py`), what it shows (`staging.py`).

Inside there is: /usr read-only, a few files of /etc, /proc and /dev of its own, and memory file systems of bounded size
for /work, /home/agent, /tmp, /run and /dev/shm. User, process, network, IPC, host-name and control-group namespaces are
its own; no capabilities, no new privileges, no more namespaces. Started by root, it runs as `nobody`: limits on the
number of processes do not hold for root, and root's files are not its own.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import control_group, staging
from serve.environments.tasks import Limits

PYTHON = "/usr/bin/python3"  # the system's: a sandbox shows /usr and nothing of ours
PACKAGES = "/opt/packages"  # where Python packages are shown
NOBODY = "65534"


class SandboxUnavailable(EnvironmentFailed):
    """No sandbox can start on this machine. Nothing is run without one."""


def command(limits: Limits, packages: Iterable[str], fds: dict[str, int]) -> list[str]:
    """The argument list up to the program. `fds`: those of `open_files`."""
    disk = str(limits.disk_mb << 20)
    argv = [
        *_as_nobody(),
        _program("bwrap"), "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
        "--as-pid-1", "--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL",
        "--ro-bind", "/usr", "/usr",
    ]  # fmt: skip
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        if Path("/", name).is_symlink():
            argv += ["--symlink", str(Path("/", name).readlink()), f"/{name}"]
        elif Path("/", name).is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    argv += ["--ro-bind", str(staging.etc_folder()), "/etc", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    for path, size in (
        ("/work", disk), ("/home/agent", disk), ("/tmp", disk), ("/dev/shm", disk), ("/run", str(4 << 20)),
    ):  # fmt: skip
        argv += ["--size", size, "--tmpfs", path]
    for name in packages:
        for path in staging.package_files(name):
            argv += ["--ro-bind", str(path), f"{PACKAGES}/{path.name}"]
    return [
        *argv, "--ro-bind", str(staging.init_file(PYTHON)), "/opt/init.pyc", "--remount-ro", "/",
        "--chdir", "/work", "--seccomp", str(fds["filter"]), "--",
    ]  # fmt: skip


def _as_nobody() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    return (_program("setpriv"), "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--")


@functools.cache
def _program(name: str) -> str:
    """Its path, so that a start need not look through PATH."""
    return shutil.which(name) or name


def open_files() -> dict[str, int]:
    """Descriptors that a start needs of its own: the system call filter, and a file in memory for shell commands."""
    return {"filter": os.open(staging.filter_file(), os.O_RDONLY), "script": os.memfd_create("script")}


@functools.cache
def require() -> None:
    """Look, once, whether a sandbox can start here.

    Raises:
        SandboxUnavailable: what is missing, and how to install it.
    """
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable("no sandbox here: bubblewrap is missing. apt-get install bubblewrap (0.8 or newer)")
    if not Path(PYTHON).exists():
        raise SandboxUnavailable(f"no sandbox here: {PYTHON} is missing. apt-get install python3")
    try:
        fds = open_files()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(
            f"no sandbox here: {error}. Is libseccomp there? apt-get install libseccomp2"
        ) from error
    try:
        argv = [*command(Limits(), (), fds), "/usr/bin/true"]
        done = subprocess.run(argv, pass_fds=fds.values(), capture_output=True, timeout=60, check=False)
    finally:
        for fd in fds.values():
            os.close(fd)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"bwrap ended with {done.returncode}"
        raise SandboxUnavailable(
            f"no sandbox here: {said}. It takes bubblewrap 0.8 or newer and user namespaces: sysctl "
            "kernel.unprivileged_userns_clone=1 on Debian, kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, "
            "user.max_user_namespaces above 0"
        )


def walls() -> dict[str, str]:
    """Which walls stand on this machine, for a status line.

    Raises:
        SandboxUnavailable: none do.
    """
    require()
    places = control_group.usable()
    grouped = not isinstance(places, str)
    return {
        "namespaces": "user, process, network, mount, IPC, host name, control group",
        "user": "nobody" if os.geteuid() == 0 else "ours",
        "system_calls": "seccomp",
        "memory": "control group" if grouped else f"looked at ten times a second; no control group: {places}",
        "processes": "limit and control group" if grouped else "limit",
    }
