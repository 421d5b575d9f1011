"""Tasks and actions for the tests of the tool-call track."""

from typing import Any

from serve.environments.protocol import Action, Call, StepResult
from serve.environments.tasks import Task, TaskError
from serve.environments.tool_call import LIMITS, ToolCallEnvironment
from serve.environments.tool_call.spec import read_payload

BOOK = {
    "name": "book",
    "description": "Books a room.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"type": "string", "enum": ["A", "B"]}, "people": {"type": "integer", "minimum": 1}},
        "required": ["room"],
    },
    "code": (
        "def book(room, people=1):\n    while people == 77: pass\n    if people > 9:\n"
        "        raise ValueError('at most 9 people; book two rooms')\n    booked.append((room, people))\n"
        "    return {'booked': len(booked)}\n"
    ),
}
BOOKING = {"functions": [BOOK], "state": "booked = []", "kind": "call", "state_check": "booked == [('A', 2)]"}


def fail(name: str, what: str) -> TaskError:
    return TaskError(f"t.toml:1: {name}: {what}")


def task(limits: dict[str, Any] | None = None, **payload: Any) -> Task:
    return Task(
        task_id="t", track="tool_call", skill="s", split="train", difficulty=1, instruction="do it",
        limits=LIMITS.replace(limits or {}), payload=read_payload(payload, fail), source="t.toml:1",
    )  # fmt: skip


def call(name: str, /, **arguments: Any) -> Call:
    return Call(name=name, arguments=arguments)


def python(code: str) -> Call:
    return call("python", code=code)


async def step(environment: ToolCallEnvironment, *calls: Call) -> StepResult:
    return await environment.step(Action(text="", calls=calls))


async def said(environment: ToolCallEnvironment, *calls: Call) -> str:
    return (await step(environment, *calls)).observation.text
