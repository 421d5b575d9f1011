"""The tracks there are: what each folder offers, and an environment of a track by its name.

What it leaves out: everything of one track. A track is a folder here whose package has the names of `TrackModule`; a
new one needs a line in `protocol.TRACKS` and nothing else.
"""

import importlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from serve.environments.protocol import TRACKS, Action, Environment, Observation
from serve.environments.sandbox import Sandbox
from serve.environments.tasks import Limits, Task


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """What environments of a process share."""

    start: Callable[..., Awaitable[Sandbox]] = Sandbox.start  # how they come by a sandbox: fresh, or from spares
    repositories: Path | None = None  # where the git repositories of SWE-bench rows lie
    pages: Path | None = None  # the one folder that pages of tasks may come from; None: wherever a task says


class TrackModule(Protocol):
    """The names of a track's package."""

    LIMITS: Limits
    SYSTEM: str  # for models that call tools
    SYSTEM_PLAIN: str  # for models that can't
    EXAMPLE_PLAIN: tuple[str, ...]  # user and assistant in turn: a small model imitates what it can't be told

    def load(self) -> tuple[Task, ...]:
        """The tasks that ship with the product."""
        ...

    def make(self, settings: EnvironmentSettings) -> Environment:
        """A fresh environment."""
        ...

    def tools(self, task: Task) -> list[dict[str, Any]]:
        """Its actions as OpenAI function declarations."""
        ...

    def parse_plain(self, text: str) -> Action:
        """What a plain-text answer asks for; its fault says what was wrong."""
        ...

    def plain_text(self, action: Action) -> str:
        """The plain-text answer that `parse_plain` reads back as this action."""
        ...

    def expert_action(self, entry: Any, observation: Observation) -> Action:
        """One entry of a task's expert or wrong solution as an action."""
        ...


def track(name: str) -> TrackModule:
    """The track of this name.

    Raises:
        ValueError: there is none; names those there are.
    """
    if name not in TRACKS:
        raise ValueError(f"there is no track {name!r}: there are {', '.join(TRACKS)}")
    return cast(TrackModule, importlib.import_module(f"serve.environments.{name}"))


def find_task(track_name: str, task_id: str, among: Iterable[Task] | None = None) -> Task:
    """A task of a track, of ours or among these.

    Raises:
        ValueError: there is none of this id; names the nearest.
    """
    tasks = {task.task_id: task for task in (track(track_name).load() if among is None else among)}
    if task_id not in tasks:
        import difflib

        near = difflib.get_close_matches(task_id, tasks, n=3, cutoff=0.5)
        few = f"near are {', '.join(near)}" if near else f"there are {', '.join(sorted(tasks)[:3])} and others"
        raise ValueError(f"{track_name} has no task {task_id!r}: {few}; `list {track_name}` shows all of ours")
    return tasks[task_id]
