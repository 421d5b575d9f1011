"""The SWE track: a repository with a fault, an issue that tells of it, and hidden tests that judge the patch.

What it does: gathers what a track consists of. What it leaves out: rows of others (`rows.load_rows`).
"""

from typing import Any

from serve.environments.protocol import Action, Observation
from serve.environments.swe.environment import SweEnvironment
from serve.environments.swe.plain import parse_plain, plain_text
from serve.environments.swe.shipped import LIMITS, load
from serve.environments.tasks import Task
from serve.environments.terminal.calls import entry_action

__all__ = [
    "EXAMPLE_PLAIN", "LIMITS", "SYSTEM", "SYSTEM_PLAIN", "TOOLS", "SweEnvironment", "expert_action", "load", "make",
    "parse_plain", "plain_text", "tools",
]  # fmt: skip

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": (
                "Run a command in a bash shell that begins in the repository and lives on between calls. There is no "
                "terminal and no network, and stdin is empty. Gives stdout, stderr, the exit code, and the difference "
                "to the first commit when it changed."
            ),
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "One or more lines of bash."}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Submit the repository as it is now. Nothing can be changed after it.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

SYSTEM = """\
You mend a Python library in the git repository /work/repo through a bash shell. Read the issue, look at the source, \
reproduce the fault, change the source, run the tests (python3 -m pytest), then call submit. Hidden tests judge the \
change; changes of tests and of pytest's settings do not count. The shell lives on between calls. There is no network, \
no terminal and no input: edit files with sed, python3 or git apply, not with an editor."""

SYSTEM_PLAIN = """\
You mend a Python library in the git repository /work/repo through a bash shell. Answer with exactly one block:
```bash
git ls-files
```
You then see its output. Edit files with sed or python3; there is no editor and no network. When the issue is mended, \
answer with the single word SUBMIT."""

EXAMPLE_PLAIN = ()  # an episode that shows more than the form above would be longer than the task


def make(settings: Any = None) -> SweEnvironment:
    """An environment for one episode at a time. Of `settings`, `start` (of sandboxes) and `repositories` are read."""
    given = {name: getattr(settings, name, None) for name in ("start", "repositories")}
    return SweEnvironment(**{name: value for name, value in given.items() if value is not None})


def tools(task: Task) -> list[dict[str, Any]]:
    """The actions of every task of this track."""
    return TOOLS


def expert_action(entry: Any, observation: Observation) -> Action:
    """One entry of `expert` or `wrong`: a bash command, or "submit".

    Raises:
        ValueError: it is no text.
    """
    return entry_action(entry, "submit", "SWE")
