"""A control group for each sandbox: the kernel's own bound on its memory and on the number of its processes.

What it does: counts what no limit of a process counts (shared memory that is no longer mapped, inodes, socket buffers,
the kernel's own memory for it) and ends the largest process where it is too much. Version 1 (hierarchies `memory` and
`pids`) and version 2; the groups lie below this process's own, or beside it.
What it leaves out: anything that has to be set up. Where this process may not make such groups there are none:
`usable()` tries, once, and says why not. The other limits stand without them.

A sandbox's init is moved into its group while it starts, before it is asked for anything: what it starts is in there
too. To move a process takes the kernel 10 to 20 ms of waiting where none was moved for a while, which a start hides.

A group's name begins with the process that made it; what a dead process left is removed by the next one.
"""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serve.environments.scratch import began, left_by_the_dead
from serve.environments.tasks import Limits

NAME = "clawrl-sandbox"
SLACK_MB = 64  # for the sandbox's init, page tables, the kernel's memory
TCP_MB = 32  # version 1 counts these buffers apart
MORE_PROCESSES = 4  # than limits.processes: bubblewrap, the sandbox's init, and what is just ending
CHILD_S = 10.0  # until bubblewrap has forked
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Group:
    """One sandbox's control group: one folder, or one in each hierarchy."""

    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Each once."""
        return tuple(dict.fromkeys((self.memory, self.pids)))

    def take_child(self, pid: int) -> None:
        """Move the one child of this process in here, once it has one; nothing where it ends without. Blocks.

        Raises:
            OSError: the kernel refuses.
        """
        until, child = time.monotonic() + CHILD_S, ""
        while not child and time.monotonic() < until:
            try:
                child = Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):  # it ended, and its own words say why
                return
            if not child:
                time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            for folder in self.folders:
                (folder / "cgroup.procs").write_text(child)

    def struck(self) -> int:
        """How many processes the kernel ended in here for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            try:
                lines = (self.memory / name).read_text().splitlines()
            except FileNotFoundError:
                continue
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        return 0

    def remove(self) -> bool:
        """Whether it is gone; it can't go before the last process is."""
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # busy
                return False
        return True


def make(limits: Limits) -> Group | None:
    """A fresh one; None where there are none."""
    places = usable()
    return None if isinstance(places, str) else _make(places, limits)


def _make(places: tuple[Path, Path], limits: Limits) -> Group:
    name = f"{NAME}-{os.getpid()}-{began(os.getpid())}-{next(_numbers)}"
    group = Group(*(place / name for place in places))
    disks = 4 * limits.disk_mb  # each of its large memory file systems may be full
    memory, processes = (limits.memory_mb + disks + SLACK_MB) << 20, limits.processes + MORE_PROCESSES
    try:
        for folder in group.folders:
            folder.mkdir()
        if (group.memory / "memory.max").exists():
            (group.memory / "memory.max").write_text(str(memory))
            _try(group.memory / "memory.swap.max", 0)
        else:
            (group.memory / "memory.limit_in_bytes").write_text(str(memory))
            _try(group.memory / "memory.memsw.limit_in_bytes", memory)
            _try(group.memory / "memory.kmem.tcp.limit_in_bytes", TCP_MB << 20)
        (group.pids / "pids.max").write_text(str(processes))
    except OSError:
        group.remove()
        raise
    return group


def _try(file: Path, value: int) -> None:
    """What not every kernel has."""
    if file.exists():
        file.write_text(str(value))


@functools.cache
def usable() -> tuple[Path, Path] | str:
    """Where groups for memory and for processes can be made; or why they can't."""
    why = "no control groups are mounted"
    for places in _places():
        try:
            _sweep(places)
            group = _make(places, Limits())
            try:
                gone = _tried(group)
            finally:
                group.remove()
        except OSError as error:
            why = f"none can be made below {places[0]}: {error}"
            continue
        if gone:
            return places
        why = f"a group below {places[0]} took no process, or could not be removed"
    return why


def _tried(group: Group) -> bool:
    """Whether a process can be moved in there, and the group be removed after it."""
    script = "sleep 10 & wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True) as shell:
        try:
            group.take_child(shell.pid)
            inside = (group.memory / "cgroup.procs").read_text().split()
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    until = time.monotonic() + CHILD_S
    while not group.remove() and time.monotonic() < until:
        time.sleep(0.001)
    return len(inside) == 1 and not group.memory.exists()


def _places() -> Iterator[tuple[Path, Path]]:
    """Folders that may do, for memory and for processes."""
    mounts, own = _mounts(), _own()
    if "memory" in mounts and "pids" in mounts:
        yield tuple(_within(mounts[name], own.get(name, "/")) for name in ("memory", "pids"))
    elif "" in mounts:
        folder = _within(mounts[""], own.get("", "/"))
        for place in (folder, folder.parent):
            control = place / "cgroup.subtree_control"
            if control.exists() and {"memory", "pids"} <= set(control.read_text().split()):
                yield place, place


def _mounts() -> dict[str, Path]:
    """Controller and where its hierarchy is mounted; "" is version 2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", Path(head.split()[4]))
        elif kind == "cgroup":
            for name in options.split(","):
                found.setdefault(name, Path(head.split()[4]))
    return found


def _own() -> dict[str, str]:
    """Controller and this process's own group; "" is version 2."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def _within(mount: Path, path: str) -> Path:
    """The folder of a group; the hierarchy's top, where a container shows no more of it."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _sweep(places: tuple[Path, Path]) -> None:
    """Remove what processes that are gone have left."""
    for place in dict.fromkeys(places):
        for folder in left_by_the_dead(place, NAME):
            Group(folder, folder).remove()
