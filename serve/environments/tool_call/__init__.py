"""The tool-call track: Python and functions that a task declares, until a final answer that is checked.

What it exports is what every track exports. Mathematics (sympy) is loaded by a process of its own, when first needed.
"""

from functools import cache
from pathlib import Path

from serve.environments.catalog import EnvironmentSettings
from serve.environments.tasks import Task, check_all, load_toml
from serve.environments.tool_call.declared import EXAMPLE_PLAIN, SYSTEM, SYSTEM_PLAIN, TOOLS, tools
from serve.environments.tool_call.environment import ToolCallEnvironment
from serve.environments.tool_call.plain import expert_action, parse_plain, plain_text
from serve.environments.tool_call.spec import LIMITS, read_payload

__all__ = [
    "EXAMPLE_PLAIN", "LIMITS", "SYSTEM", "SYSTEM_PLAIN", "TOOLS", "ToolCallEnvironment", "expert_action", "load",
    "load_file", "make", "parse_plain", "plain_text", "tools",
]  # fmt: skip

TASKS = Path(__file__).with_name("tasks")


@cache
def load() -> tuple[Task, ...]:
    """The track's own tasks.

    Raises:
        TaskError: names file, line and field.
    """
    files = sorted(TASKS.glob("*.toml"))
    return check_all(task for path in files for task in load_file(path))


def load_file(path: Path) -> list[Task]:
    """The tasks of one skill's file.

    Raises:
        TaskError: names file, line and field.
    """
    return load_toml(path, "tool_call", LIMITS, lambda own, place: read_payload(own, place.error))


def make(settings: EnvironmentSettings | None = None) -> ToolCallEnvironment:
    """An environment for one episode after another."""
    return ToolCallEnvironment() if settings is None else ToolCallEnvironment(settings.start)
