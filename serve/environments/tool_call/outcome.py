"""How an episode of this track ended: the checks of its answer, its calls and its state.

What it does: `evaluate`; one check for the answer, one for each call that the task asks for, one for calls beyond them,
one for each state check. What it leaves out: comparing answers (`answers.py`).
"""

from typing import Any

from serve.environments.protocol import Call, Check, Outcome
from serve.environments.tool_call.answers import check_answer, json_equal
from serve.environments.tool_call.host import FunctionHost
from serve.environments.tool_call.spec import ToolTask

NO_ANSWER = Outcome(
    score=-1.0,
    checks=(Check(name="final answer", passed=False, detail="the episode ended without a final answer of the policy"),),
)


async def evaluate(task: ToolTask, answer: Any, made: list[Call], host: FunctionHost | None) -> Outcome:
    """The outcome of an episode with this final answer (None: there is none) and these calls that succeeded.

    Raises:
        EnvironmentFailed: a check gave no result.
    """
    if answer is None:
        return NO_ANSWER
    checks = [] if task.kind == "call" else [await check_answer(task, answer)]
    checks += call_checks(task, made)
    for expression in task.state_check:
        assert host is not None, "the task file's check: a state check needs functions"
        held, fault = await host.holds(expression)
        checks.append(Check(name=f"state: {expression}", passed=held, detail=fault))
    return Outcome.of(tuple(checks))


def call_checks(task: ToolTask, made: list[Call]) -> list[Check]:
    """One check for each call that was asked for, and one for calls beyond them."""
    left = list(made)
    checks = []
    for wanted in task.calls:
        match = next((one for one in left if _same(wanted, one)), None)
        if match is not None:
            left.remove(match)
        detail = "" if match is not None else f"not made with {wanted['arguments']}"
        checks.append(Check(name=f"call: {wanted['name']}", passed=match is not None, detail=detail))
    beyond = [call for call in left if call.name in task.only_calls]
    if task.only_calls:
        detail = f"{beyond[0].name} was called with {beyond[0].arguments}" if beyond else ""
        checks.append(Check(name="no other calls", passed=not beyond, detail=detail))
    return checks


def _same(wanted: dict[str, Any], made: Call) -> bool:
    return wanted["name"] == made.name and json_equal(wanted["arguments"], made.arguments)
