"""The wrapper through which Chromium is started: bubblewrap with a network namespace of its own.

What it does: finds bubblewrap and Chromium, writes a small script that starts the one inside the other. The browser
sees /usr and a few parts of /etc read-only, private memory file systems, no other process, no environment, and a
network without any way out: the kernel, not the browser, keeps it off the host and the internet. Playwright's pipe
(file descriptors 3 and 4) passes through.
What it leaves out: system call filters; a limit on the browser's memory (one browser serves many episodes; a page's
JavaScript heap is limited by a flag, see `browser.py`).
"""

import shlex
import shutil
from pathlib import Path

INSTALL = "install both with `apt-get install bubblewrap chromium`"
# Debian's /usr/bin/chromium is a shell script that reads /etc/chromium.d; the program itself needs neither.
PROGRAMS = ("/usr/lib/chromium/chromium", "/usr/bin/chromium", "/usr/bin/chromium-browser")
ETC = ("fonts", "ssl/certs", "alternatives", "ld.so.cache", "nsswitch.conf", "passwd", "localtime")
TMP_BYTES = 512 * 1024 * 1024
SHM_BYTES = 512 * 1024 * 1024  # /dev/shm: what Chromium's processes share
RUN_BYTES = 16 * 1024 * 1024


def unavailable(what: str) -> Exception:
    """The error for a machine on which no sandboxed browser can run."""
    from serve.environments.sandbox import SandboxUnavailable

    return SandboxUnavailable(f"the gui track can't start its browser: {what}; {INSTALL}")


def command() -> list[str]:
    """The command that starts Chromium inside its jail, without Chromium's own arguments.

    Raises:
        SandboxUnavailable: bubblewrap or Chromium is not installed.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise unavailable("bubblewrap (bwrap) was not found")
    program = next((path for path in PROGRAMS if Path(path).is_file()), None)
    if program is None:
        raise unavailable(f"Chromium was not found at {', '.join(PROGRAMS)}")
    jail = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for name, value in {"HOME": "/tmp/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}.items():
        jail += ["--setenv", name, value]
    jail += ["--ro-bind", "/usr", "/usr"]
    for folder in ("bin", "sbin", "lib", "lib64"):
        path = Path("/") / folder
        if path.is_symlink():
            jail += ["--symlink", f"usr/{folder}", str(path)]
        else:
            jail += ["--ro-bind-try", str(path), str(path)]
    for name in ETC:
        jail += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    jail += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in {"/dev/shm": SHM_BYTES, "/run": RUN_BYTES, "/tmp": TMP_BYTES}.items():
        jail += ["--size", str(size), "--tmpfs", path]
    jail += ["--dir", "/tmp/home", "--chdir", "/tmp", program]
    return jail


def write_script(folder: Path) -> Path:
    """Write the script that Playwright takes for its browser. It may be removed once the browser runs."""
    path = folder / "chromium"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n', "utf-8")
    path.chmod(0o700)
    return path
