"""Whether the label of a mathematics task can be compared with anything at all; looked up once for each label.

What it does: `require_label`, `unreadable`. What it leaves out: comparing.
"""

import asyncio
from functools import lru_cache

from serve.environments.tasks import TaskError
from serve.environments.tool_call import math_peer
from serve.environments.tool_call.numbers import read_number
from serve.environments.tool_call.spec import ToolTask


@lru_cache(maxsize=10_000)
def unreadable(label: str) -> bool:
    """Whether a label is neither a plain number nor mathematics that can be compared. May start a process.

    Raises:
        EnvironmentFailed: the comparing process can't be started or broke.
    """
    if read_number(label) is not None:
        return False
    too_long = len(label) > math_peer.MAX_CHARS or "\n" in label
    return too_long or not math_peer.readable(label)


async def require_label(task: ToolTask) -> None:
    """A label of kind math must be readable.

    Raises:
        TaskError: it is not.
    """
    if task.kind == "math" and read_number(task.label) is None and await asyncio.to_thread(unreadable, task.label):
        raise TaskError(f"label: {task.label!r} can't be read as mathematics; kind exact compares texts")
