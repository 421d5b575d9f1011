"""Track `gui`: web pages in a real Chromium, used by mouse and keyboard; the next state is what changed on screen."""

from typing import Any

from serve.environments.gui.expert import expert_action
from serve.environments.gui.load import LIMITS, load, load_file
from serve.environments.gui.plain import parse_plain, plain_text
from serve.environments.gui.tools import EXAMPLE_PLAIN, SYSTEM, SYSTEM_PLAIN, TOOLS
from serve.environments.protocol import Environment
from serve.environments.tasks import Task

__all__ = [
    "EXAMPLE_PLAIN", "LIMITS", "SYSTEM", "SYSTEM_PLAIN", "TOOLS", "expert_action", "load", "load_file", "make",
    "parse_plain", "plain_text", "tools",
]  # fmt: skip


def make(settings: Any = None) -> Environment:
    """An environment for one episode at a time; all of a process share one browser.

    Of the settings, `pages` is the folder that tasks' own pages may lie in; None: any.
    """
    from serve.environments.gui.environment import GuiEnvironment

    return GuiEnvironment(pages=getattr(settings, "pages", None))


def tools(task: Task) -> list[dict[str, Any]]:
    """The actions as OpenAI function declarations; the same for every task."""
    return TOOLS
