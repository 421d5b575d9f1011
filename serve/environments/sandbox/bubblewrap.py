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
from serve.environments.sandbox import staging
from serve.environments.tasks import Limits

PYTHON = "/usr/bin/python3"  # the system's: a sandbox shows /usr and nothing of ours
PACKAGES = "/opt/packages"  # where Python packages are shown
NOBODY = "65534"
ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "magic",
    "services",
    "protocols",
)
PASSWD = b"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
GROUP = b"root:x:0:\nagent:x:1000:\n"
HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost\n"


class SandboxUnavailable(EnvironmentFailed):
    """No sandbox can start on this machine. Nothing is run without one."""


def command(limits: Limits, packages: Iterable[str], fds: dict[str, int]) -> list[str]:
    """The argument list up to the program. `fds`: open descriptors of the filter and of three files of /etc."""
    disk = str(limits.disk_mb << 20)
    argv = [
        *_as_nobody(),
        "bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
        "--as-pid-1", "--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL",
        "--ro-bind", "/usr", "/usr",
    ]  # fmt: skip
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        if Path("/", name).is_symlink():
            argv += ["--symlink", str(Path("/", name).readlink()), f"/{name}"]
        elif Path("/", name).is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group", "hosts"):
        argv += ["--ro-bind-data", str(fds[name]), f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
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
    return ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--")


def open_files() -> dict[str, int]:
    """Descriptors that `command` names; each start reads them to their end, so each needs its own."""
    fds = {"filter": os.open(staging.filter_file(), os.O_RDONLY)}
    for name, data in (("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS)):
        fds[name] = os.memfd_create(name)
        os.write(fds[name], data)
        os.lseek(fds[name], 0, os.SEEK_SET)
    return fds


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
