"""A stand-in for an environment: no process, everything recorded. For the tests of leases, pool and HTTP only."""

import asyncio

from serve.environments.protocol import Action, Check, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Limits, Task


def task(task_id: str = "one", **payload: object) -> Task:
    """A task that the stand-in understands: payload fail_reset, steps_s."""
    return Task(
        task_id=task_id, track="terminal", skill="none", split="train", difficulty=1, instruction="Do it.",
        limits=Limits(episode_s=20), payload=payload,
    )  # fmt: skip


class EnvironmentStandIn:
    """Counts what it is asked. An action's text says what to do: "fail", "raise", "hang", "slow", "done"."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.closed = 0

    async def reset(self, given: Task) -> Observation:
        if given.payload.get("fail_reset"):
            raise EnvironmentFailed("the set-up failed")
        return Observation(text="begun")

    async def step(self, action: Action) -> StepResult:
        self.steps.append(action.text)
        if action.text == "fail":
            raise EnvironmentFailed("the sandbox died")
        if action.text == "raise":
            raise RuntimeError("a fault of ours")
        if action.text == "hang":
            await asyncio.sleep(1000)
        if action.text == "slow":
            await asyncio.sleep(0.2)
        return StepResult(observation=Observation(text=f"step {len(self.steps)}"), done=action.text == "done")

    async def evaluate(self) -> Outcome:
        return Outcome.of((Check(name="steps", passed=len(self.steps) > 0),))

    async def close(self) -> None:
        self.closed += 1
