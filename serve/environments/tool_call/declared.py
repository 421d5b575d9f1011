"""What a task's policy may call, for models that call tools and for those that read and write text.

What it does: `tools` (OpenAI declarations), `describe` (the same as text), the system prompts.
What it leaves out: the plain format's reading (`plain.py`).
"""

from typing import Any

from serve.environments.tasks import Task
from serve.environments.tool_call.spec import ToolTask

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Run Python 3 code. Shows what it prints, and the value of a last expression.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The code to run."}},
                "required": ["code"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "answer",
            "description": "Give the final answer, alone and once. It ends the task.",
            "parameters": {
                "type": "object",
                "properties": {"value": {"type": "string", "description": "The final answer: only the value."}},
                "required": ["value"],
            },
        },
    },
]

SYSTEM = """\
You solve a task with the tools you are given. Call tools to compute, look up and change things; read each result \
before you go on. When you know the answer, call answer(value) with only the value, or write it as the last line: \
Answer: ... One message holds either calls or the final answer, never both."""

SYSTEM_PLAIN = """\
You solve a task step by step. In each message do exactly one of these:

1. Run Python code. Its output is shown to you.
```python
print(2 + 3)
```
2. Call a function that the task names.
```json
{"name": "look_up", "arguments": {"city": "Oslo"}}
```
3. Give the final answer, only the value, as the last line.
Answer: 5"""

_RUN = "Python can be run; names live on from call to call."
EXAMPLE_PLAIN = (
    f"What is 7 times 6? The final answer is the number.\n\n{_RUN}",
    "```python\nprint(7 * 6)\n```",
    "42",
    "Answer: 42",
)


def tools(task: Task) -> list[dict[str, Any]]:
    """The OpenAI declarations of what this task's policy may call.

    Raises:
        TaskError: the task is broken.
    """
    read = ToolTask.of(task)
    python, answer = TOOLS
    return [*([python] if read.python else []), *(function.tool() for function in read.functions), answer]


def describe(task: ToolTask) -> str:
    """What can be called, as text: the first observation."""
    lines = []
    if task.python:
        kept = "names live on from call to call" if task.keep_state else "each call starts anew"
        lines.append(f"Python can be run; {kept}.")
    if task.functions:
        lines.append("Functions that can be called:")
        lines += [f"- {function.signature()}: {function.description}" for function in task.functions]
    if not lines:
        lines.append("Nothing can be called: think, and give the final answer.")
    if task.kind == "json":
        lines.append("The final answer is a JSON value.")
    return "\n".join(lines)
