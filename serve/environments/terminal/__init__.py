"""The terminal track: a bash shell in a sandbox, and tasks to do with files, text, scripts and git.

What it does: gathers what a track consists of. What it leaves out: task folders of others (`folders.py`).
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve.environments.catalog import EnvironmentSettings
from serve.environments.protocol import Action, Observation
from serve.environments.tasks import Limits, Task, check_all, load_toml
from serve.environments.terminal.calls import entry_action, with_entries
from serve.environments.terminal.environment import TerminalEnvironment
from serve.environments.terminal.payload import read_payload
from serve.environments.terminal.plain import parse_plain, plain_text

__all__ = [
    "EXAMPLE_PLAIN", "LIMITS", "SYSTEM", "SYSTEM_PLAIN", "TOOLS", "TerminalEnvironment", "expert_action", "load",
    "load_file", "make", "parse_plain", "plain_text", "tools",
]  # fmt: skip

LIMITS = Limits(steps=12, step_s=20.0, episode_s=240.0, memory_mb=512, processes=64, disk_mb=64, output_chars=6000)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": (
                "Run a command in a bash shell that lives on between calls: folder, variables, functions and "
                "background jobs stay. There is no terminal and no network, and stdin is empty. Gives stdout, stderr "
                "and the exit code."
            ),
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "One or more lines of bash."},
                    "timeout_s": {"type": "number", "description": "Seconds after which it is stopped."},
                },
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "done",
            "description": "Say that the task is finished. Nothing can be run after it.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

SYSTEM = """\
You work in a Linux sandbox through a bash shell. Do the task with the bash tool: look first, change what the task \
asks for, check the result, then call done. The shell begins in /work and lives on between calls. There is no network, \
no terminal and no input: programs that ask for keys or passwords get the end of the file. Long output is cut in its \
middle."""

SYSTEM_PLAIN = """\
You work in a Linux sandbox through a bash shell that begins in /work. Do the task one command at a time. Answer with \
exactly one block:
```bash
ls
```
You then see its output. There is no network, no terminal and no input. When the task is finished, answer with the \
single word DONE."""

EXAMPLE_PLAIN = (
    "Write the word bye into the file note.txt.\n\nThe shell is in /work, which is empty.",
    "```bash\necho bye > note.txt\n```",
    "(no output)\nexit code: 0",
    "DONE",
)


def make(settings: EnvironmentSettings | None = None) -> TerminalEnvironment:
    """An environment for one episode at a time. Of `settings`, `start` (of sandboxes) is read."""
    return TerminalEnvironment() if settings is None else TerminalEnvironment(settings.start)


def tools(task: Task) -> list[dict[str, Any]]:
    """The actions of every task of this track."""
    return TOOLS


@functools.cache
def load() -> tuple[Task, ...]:
    """The shipped tasks.

    Raises:
        TaskError: names file, line and field.
    """
    files = sorted((Path(__file__).parent / "tasks").glob("*.toml"))
    return check_all(task for path in files for task in load_file(path))


def load_file(path: Path) -> Iterator[Task]:
    """The tasks of one skill's file.

    Raises:
        TaskError: names file, line and field.
    """
    tasks = load_toml(path, "terminal", LIMITS, lambda own, place: read_payload(own, place.error))
    return with_entries(tasks, "done", "terminal")


def expert_action(entry: Any, observation: Observation) -> Action:
    """One entry of `expert` or `wrong`: a bash command, or "done".

    Raises:
        ValueError: it is no text.
    """
    return entry_action(entry, "done", "terminal")
