"""Tasks and actions for the tests of the terminal track."""

from collections.abc import Iterable
from typing import Any

from serve.environments.protocol import Action, Call, Outcome, StepResult
from serve.environments.tasks import Task
from serve.environments.terminal import LIMITS, TerminalEnvironment

ANY = [{"name": "anything", "run": "true"}]


def task(limits: dict[str, Any] | None = None, **payload: Any) -> Task:
    payload = payload if "checks" in payload or "tests" in payload else payload | {"checks": ANY}
    return Task(
        task_id="made", track="terminal", skill="made", split="train", difficulty=1, instruction="Do it.",
        limits=LIMITS.replace(limits or {}), payload=payload, source="made.toml:1",
    )  # fmt: skip


def bash(command: str, **more: Any) -> Action:
    return Action(text="", calls=(Call(name="bash", arguments={"command": command} | more),))


DONE = Action(text="", calls=(Call(name="done", arguments={}),))


async def step(environment: TerminalEnvironment, command: str, **more: Any) -> StepResult:
    return await environment.step(bash(command, **more))


async def said(environment: TerminalEnvironment, command: str, **more: Any) -> str:
    return (await step(environment, command, **more)).observation.text


async def outcome_of(made: Task, commands: Iterable[str]) -> Outcome:
    """What is said of what these commands leave."""
    environment = TerminalEnvironment()
    try:
        await environment.reset(made)
        for command in commands:
            await step(environment, command)
        return await environment.evaluate()
    finally:
        await environment.close()
