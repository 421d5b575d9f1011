"""Start processes that outlive the command that started them, and end exactly those.

Each gets a session of its own and the mark CLAWRL_INSTANCE in its environment: whatever it forks carries both, so what
is ended is what was started, by pid, and nothing else on the machine.
"""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

MARK = "CLAWRL_INSTANCE"


def spawn(command: Sequence[str | Path], log: Path) -> subprocess.Popen:
    """Start `command` in a session of its own, with our environment, its output appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def of_instance(instance: str) -> list[psutil.Process]:
    """Every living process that carries the mark, our own excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == instance:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def end(processes: Sequence[psutil.Process], patience_s: float = 20.0) -> int:
    """Ask, wait, then kill. Returns how many had to be killed."""
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, left = psutil.wait_procs(processes, timeout=patience_s)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=5)
    return len(left)


def port_user(port: int, host: str = "127.0.0.1") -> str | None:
    """Who listens on a port, or None where it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return None
        except OSError:
            pass
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


def wait_until(check: Callable[[], bool], what: str, seconds: float, child: subprocess.Popen, log: Path) -> float:
    """Poll `check()` until it is true; returns the seconds it took.

    Raises ValueError with the log's last line if the process ends first or the time is up.
    """
    began = time.monotonic()
    while True:
        status = child.poll()  # before the check: one that ends well in between is not a fault
        if check():
            return time.monotonic() - began
        if status is not None:
            raise ValueError(f"{what} ended with status {status}: {last_line(log)} (all of it in {log})")
        if time.monotonic() - began > seconds:
            raise ValueError(f"{what} was not ready after {seconds:.0f} s: {last_line(log)} (all of it in {log})")
        time.sleep(0.1)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[-40:] if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
