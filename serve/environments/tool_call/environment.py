"""The tool-call environment: Python and the functions that a task declares, until the final answer.

What it does: `ToolCallEnvironment`. Calls of one answer run in order, each with its own labelled result; a fault of one
does not hide the results of the others. The policy's Python runs in one sandbox, the declared functions in another;
that of the functions starts at reset, where a task has some, and the other when first used. The label enters neither.
What it leaves out: reading a model's text (`plain.py`), running functions (`host.py`), checking (`outcome.py`).
"""

import time
from collections.abc import Iterable
from typing import Any

from serve.environments.protocol import MAX_CALLS, Action, Call, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.sandbox import PythonResult, Sandbox
from serve.environments.tasks import Limits, Task, TaskError
from serve.environments.tool_call.answers import final_answer, first_answer_line, unfit
from serve.environments.tool_call.declared import describe
from serve.environments.tool_call.functions import Function, argument_faults, nearest, short_name, short_names, too_deep
from serve.environments.tool_call.host import FunctionHost, StartSandbox
from serve.environments.tool_call.labels import require_label
from serve.environments.tool_call.outcome import evaluate
from serve.environments.tool_call.spec import ToolTask

LEAST_S = 0.05  # of a step's time that must be left to begin another call
NEITHER = (
    "This answer has neither a call nor a final answer. Call a tool; or give the final answer: call answer(value), "
    "or end with a line 'Answer: ...'."
)
FAULT = {"fault": True, "schema_valid": False}
ALONE = "not taken: give the final answer alone, once the results of the other calls are seen"


class ToolCallEnvironment:
    """One episode at a time. `start` gives a sandbox for (limits, packages, warm)."""

    def __init__(self, start: StartSandbox = Sandbox.start) -> None:
        self._start = start
        self._forget()

    def _forget(self) -> None:
        self._limits = Limits()
        self._task: ToolTask | None = None
        self._python: Sandbox | None = None
        self._host: FunctionHost | None = None
        self._made: list[Call] = []  # calls of declared functions that succeeded
        self._answer: Any = None

    async def reset(self, task: Task) -> Observation:
        """Begin the task; the observation lists what can be called.

        Raises:
            TaskError: the task is broken.
            EnvironmentFailed: no sandbox.
        """
        await self.close()
        self._limits, self._task = task.limits, ToolTask.of(task)
        try:
            await require_label(self._task)
            if self._task.functions:
                self._host = FunctionHost(self._task, self._limits, self._start)
                await self._host.start()
            if self._task.python and (self._task.packages or not self._task.functions):
                await self._start_python()
        except ValueError as error:  # TaskError is one; so is a package that is not installed
            raise TaskError(f"{task.source or task.task_id}: {error}") from error
        return Observation(text=describe(self._task), facts={"functions": [one.name for one in self._task.functions]})

    async def _start_python(self) -> Sandbox:
        assert self._task is not None
        if self._python is None:
            self._python = await self._start(self._limits, self._task.packages, ("python",))
        return self._python

    async def step(self, action: Action) -> StepResult:
        """Carry out the calls of one answer, or take the final answer.

        Raises:
            EnvironmentFailed: a sandbox died.
        """
        if self._task is None:
            raise EnvironmentFailed("step before reset: there is no task")
        if action.fault is not None:
            return self._say(action.fault, FAULT)
        if not action.calls:
            answer, fault = final_answer(action.text)
            if fault is not None or answer is None:
                return self._say(fault or NEITHER, FAULT)
            return self._finish(answer)
        if any(too_deep(call.arguments) for call in action.calls):
            return self._say("Nothing was run: the arguments of a call are nested too deeply.", FAULT)
        if len(action.calls) == 1 and action.calls[0].name == "answer":
            return self._answer_call(action.calls[0])
        return await self._calls(action.calls)

    def _say(self, text: str, facts: dict[str, Any], done: bool = False) -> StepResult:
        text = _within(text, 2 * self._limits.output_chars)
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair can be sent nowhere
        return StepResult(observation=Observation(text=text, facts=facts), done=done)

    def _finish(self, answer: Any) -> StepResult:
        assert self._task is not None
        if (why := unfit(self._task, answer)) is not None:
            return self._say(f"{why[0].upper()}{why[1:]}. Give the final answer again.", FAULT)
        self._answer = answer
        return self._say("The final answer was taken.", {"done": True}, done=True)

    def _answer_call(self, call: Call) -> StepResult:
        if set(call.arguments) != {"value"}:
            got = short_names(call.arguments) or "nothing"
            return self._say(f"answer takes one argument, value; it was given {got}.", FAULT)
        value = call.arguments["value"]
        if not isinstance(value, str):
            return self._finish(value)
        if first_answer_line(value) is None:
            return self._finish(value)
        answer, fault = final_answer(value)  # "Answer: 5" within the call
        return self._say(fault, FAULT) if fault is not None else self._finish(answer)

    async def _calls(self, calls: Iterable[Call]) -> StepResult:
        deadline = time.monotonic() + self._limits.step_s
        calls, texts, facts = list(calls), [], []
        fits, faults = True, {"error_type": None}
        for number, call in enumerate(calls, 1):
            left_s = deadline - time.monotonic()
            if number > MAX_CALLS:
                texts.append(f"[{number} and later] not run: {MAX_CALLS} calls in one answer are the most")
                break
            if left_s < LEAST_S:
                text, good = f"not run: the step's {self._limits.step_s:g} s are used up", False
            elif (fault := self._fault_of(call)) is not None:
                text, good, fits = fault, False, False
            else:
                text, found = await self._one(call, left_s)
                good, faults = not found, faults | found
            name = short_name(call.name)
            texts.append(f"[{number} {name}] {text}" if len(calls) > 1 else text)
            facts.append({"name": name, "ok": good})
        return self._say("\n".join(texts), {"calls": facts, "schema_valid": fits, **faults})

    def _fault_of(self, call: Call) -> str | None:
        """Why this call can't be carried out, said so that it can be mended; None where it can."""
        assert self._task is not None
        if call.name == "answer":
            return ALONE
        if call.name == "python" and self._task.python:
            code = call.arguments.get("code")
            if set(call.arguments) != {"code"} or not isinstance(code, str) or not code.strip():
                return 'not run: python takes one argument, code, a text that is not empty: {"code": "print(1 + 1)"}'
            return None
        function = self._function(call.name)
        if function is None:
            known = [one.name for one in self._task.functions] + (["python"] if self._task.python else []) + ["answer"]
            return f"there is no function {short_name(call.name)!r}; {nearest(call.name, known)}"
        if faults := argument_faults(function, call.arguments):
            return f"not called, its arguments are wrong: {'; '.join(faults)}. It is {function.signature()}"
        return None

    def _function(self, name: str) -> Function | None:
        assert self._task is not None
        return next((one for one in self._task.functions if one.name == name), None)

    async def _one(self, call: Call, left_s: float) -> tuple[str, dict[str, Any]]:
        """What a call gave, in words; and the facts of its failure, none where it succeeded."""
        assert self._task is not None
        if call.name == "python" and self._task.python:
            return await self._run_python(call.arguments["code"], left_s)
        assert self._host is not None
        returned = await self._host.call(call.name, call.arguments, left_s)
        printed = f"{returned.stdout.rstrip()}\n" if returned.stdout.strip() else ""
        if returned.fault is not None:
            return f"{printed}{call.name} failed: {returned.fault}", {"error_type": "FunctionError"}
        self._made.append(call)
        return f"{printed}{call.name} returned {returned.value}", {}

    async def _run_python(self, code: str, left_s: float) -> tuple[str, dict[str, Any]]:
        assert self._task is not None
        sandbox = await self._start_python()
        result = await sandbox.python(code, keep=self._task.keep_state, timeout_s=left_s)
        facts = {"error_type": result.error_type, "timed_out": result.timed_out or None, "ended": result.ended}
        return self._shown(result, left_s), {name: value for name, value in facts.items() if value is not None}

    def _shown(self, result: PythonResult, limit_s: float) -> str:
        assert self._task is not None
        parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
        parts.append(f"=> {result.value}" if result.value is not None else "")
        if result.timed_out:
            parts.append(f"Stopped: it ran longer than {limit_s:.1f} s.")
        elif result.ended is not None:
            parts.append(f"Stopped: {result.ended}.")
        elif result.error is not None:
            parts.append(result.error.rstrip())
        if result.restarted and self._task.keep_state:
            parts.append("Python was started again: names defined before are gone.")
        return "\n".join(part for part in parts if part) or "It ran without any output: print what is to be seen."

    async def evaluate(self) -> Outcome:
        """Check the answer, the calls and the state that the functions left.

        Raises:
            EnvironmentFailed: a check gave no result.
        """
        if self._task is None:
            raise EnvironmentFailed("evaluate before reset: there is no task")
        await self._end_python()
        return await evaluate(self._task, self._answer, self._made, self._host)

    async def _end_python(self) -> None:
        if self._python is not None:
            await self._python.close()
            self._python = None

    async def close(self) -> None:
        """End both sandboxes. May be called twice, and at any time."""
        try:
            await self._end_python()
        finally:
            if self._host is not None:
                await self._host.close()
            self._forget()


def _within(text: str, most: int) -> str:
    """A whole observation, its middle left out where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters of this result left out) ...\n{text[-half:]}"
