"""`clawrl rollback` and `clawrl resume`: move the `pinned` alias and wait until the system has followed.

The same can be done in MLflow's own page: set or delete the alias `pinned`. What it leaves out: moving `live`, which
only the learner does (`serve/lineage.py`).
"""

import time
from collections.abc import Callable

from rich.console import Console

from infra.admin import Running
from infra.home import Home


def rollback(home: Home, console: Console, number: int | None) -> None:
    """Pin a version and wait until it serves. Raises ValueError for one that is not there."""
    running = Running(home)
    versions = running.versions()
    head = versions.head()
    if head is None:
        raise ValueError("no version is committed yet; `clawrl status` shows what it waits for")
    target = head.parent if number is None else number
    known = {version.number for version in versions.versions()}
    if target is None:
        raise ValueError(f"v{head.number} is the first version: there is none to go back to")
    if target not in known:
        raise ValueError(f"version {target} is not there; there are {', '.join(f'v{n}' for n in sorted(known))}")
    running.registry().set_alias("pinned", target)
    console.print(f"v{target} is pinned; waiting until it serves")
    seconds = _wait(running, lambda status: status["policy"].get("version") == target, f"version {target} to serve")
    console.print(
        f"v{target} is pinned and serves after {seconds:.1f} s. Learning pauses; `clawrl resume` goes on from it."
    )


def resume(home: Home, console: Console) -> None:
    """Delete the pin and wait until the learner has made the pinned version the head."""
    running = Running(home)
    registry = running.registry()
    pinned = registry.alias("pinned")
    if pinned is None:
        raise ValueError("nothing is pinned: learning is not paused")
    # the learner must have seen the pin, or it would not know where to branch from
    _wait(running, lambda status: status["learner"].get("pinned") == pinned, "the learner to see the pin")
    registry.delete_alias("pinned")
    _wait(
        running,
        lambda status: status["learner"].get("pinned") is None and status["learner"].get("head") == pinned,
        f"learning to go on from version {pinned}",
    )
    console.print(f"The pin is off. v{pinned} is the head: the next update comes from it.")


def _wait(running: Running, reached: Callable[[dict], bool], what: str, limit_s: float = 60.0) -> float:
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if reached(running.admin()):
            return time.monotonic() - began
        time.sleep(0.3)
    raise ValueError(f"waited {limit_s:.0f} s for {what}; `clawrl status` shows what is wrong")
