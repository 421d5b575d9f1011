"""Temporary folders that outlive nobody: what a killed process has left is removed by the next one.

What it does: `scratch(kind)`, a folder `clawrl-<kind>-<process>-<its beginning>-...` in the system's temporary folder,
removed when the block ends; the first one of a process removes those of processes that are gone.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = "clawrl"


def began(pid: int) -> str:
    """When a process began, in ticks since boot: a number used again is another process. "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A fresh folder, ours alone.

    Args:
        kind: a word for its name, letters only.
    """
    _sweep(kind)
    prefix = f"{NAME}-{kind}-{os.getpid()}-{began(os.getpid())}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def left_by_the_dead(place: Path, name: str) -> Iterator[Path]:
    """What lies in a folder as `<name>-<process>-<its beginning>-...`, of processes that are gone."""
    for path in place.glob(f"{name}-*-*-*"):
        pid, start = path.name.removeprefix(f"{name}-").split("-")[:2]
        if pid.isdigit() and began(int(pid)) != start:
            yield path


@functools.cache
def _sweep(kind: str) -> None:
    for folder in left_by_the_dead(Path(tempfile.gettempdir()), f"{NAME}-{kind}"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
