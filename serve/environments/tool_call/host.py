"""Where a task's declared functions run: a sandbox of their own, apart from the policy's Python.

What it does: `FunctionHost` loads the functions and their state, carries out calls whose arguments were checked
already, and evaluates the task's state checks. The policy's code can't read the functions nor what they work on.
A call that takes too long or too much is ended; the others made before it are then made again on a fresh state, so that
nothing is lost. So functions must do the same when called the same: no clock, no unseeded chance.
What it leaves out: the schemas (`functions.py`).
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from serve.environments.protocol import EnvironmentFailed
from serve.environments.sandbox import PythonResult, Sandbox
from serve.environments.tasks import Limits, TaskError
from serve.environments.tool_call.spec import ToolTask

StartSandbox = Callable[..., Awaitable[Sandbox]]  # (limits, packages, warm)
ANSWER_CHARS = 1_000_000  # of one reply of this sandbox; what the policy sees is cut by the prelude
CHECK_S = 10.0  # for loading, and for each state check

# Runs in the sandbox. A reply is JSON in the repr of the last expression; the policy's arguments arrive as a JSON text.
PRELUDE = """
import json as _json

class _Reply:
    def __init__(self, **fields):
        self.fields = fields
    def __repr__(self):
        return _json.dumps(self.fields)

def _cut(text, limit):
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\\n... ({len(text) - 2 * half} characters left out) ...\\n{text[-half:]}"

def _call(name, arguments, limit):
    try:
        value = globals()[name](**_json.loads(arguments))
        try:
            text = _json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return _Reply(fault=_cut(f"{type(error).__name__}: {message}".rstrip(": "), limit))
    return _Reply(value=_cut(text, limit))

def _holds(expression):
    try:
        return _Reply(holds=bool(eval(expression, globals())))
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, AssertionError) as error:
        return _Reply(holds=False, fault=_cut(f"{type(error).__name__}: {error}", 300))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What one call of a declared function gave."""

    value: str | None = None  # as JSON, or its repr where it is none
    fault: str | None = None  # what it raised, or why it was ended
    stdout: str = ""


class FunctionHost:
    """The functions of one episode."""

    def __init__(self, task: ToolTask, limits: Limits, start: StartSandbox) -> None:
        self._task = task
        self._limits = limits
        self._start = start
        self._sandbox: Sandbox | None = None
        self._made: list[str] = []  # calls so far, as Python

    async def start(self) -> None:
        """A fresh state.

        Raises:
            TaskError: the functions' source fails when it is run.
            EnvironmentFailed: no sandbox.
        """
        limits = self._limits.replace({"output_chars": ANSWER_CHARS})
        self._sandbox = await self._start(limits, (), ("python",))
        await self._load()

    async def _load(self) -> None:
        parts = [PRELUDE, self._task.state, *(function.code for function in self._task.functions)]
        result = await self._run("\n".join(parts), CHECK_S)
        if (why := result.error or result.ended or ("it takes too long" if result.timed_out else None)) is not None:
            raise TaskError(f"functions: their source or state fails when it is run: {why.strip().splitlines()[-1]}")

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Returned:
        """One call, its arguments checked already.

        Raises:
            EnvironmentFailed: the sandbox died, or the state could not be made again.
        """
        code = f"_call({name!r}, {json.dumps(arguments)!r}, {self._limits.output_chars})"
        result = await self._run(code, timeout_s)
        if result.value is None:
            await self._make_again()
            why = f"it took longer than {timeout_s:.1f} s" if result.timed_out else result.ended or result.error
            return Returned(fault=f"{why or 'it gave no result'}; it changed nothing")
        self._made.append(code)
        reply = json.loads(result.value)
        stdout = result.stdout[: self._limits.output_chars]
        return Returned(value=reply.get("value"), fault=reply.get("fault"), stdout=stdout)

    async def _make_again(self) -> None:
        assert self._sandbox is not None
        await self._sandbox.clear()
        await self._load()
        for code in self._made:
            if (await self._run(code, self._limits.step_s)).value is None:
                raise EnvironmentFailed("a call that was ended left the functions' state beyond repair")

    async def holds(self, expression: str) -> tuple[bool, str]:
        """Whether a state check is true, and what it raised if the state holds not what it looks for.

        An error that comes of the values it meets is a check that failed: a key or attribute that is not there, a value
        of another kind, min([]), a division by zero. Any other (a name that is not defined, an import, a recursion
        without end) is a fault of the check.

        Raises:
            EnvironmentFailed: it can't be evaluated.
        """
        result = await self._run(f"_holds({expression!r})", CHECK_S)
        if result.value is None:
            why = (result.error or result.ended or "it took too long").strip().splitlines()[-1]
            raise EnvironmentFailed(f"the state check {expression!r} failed: {why}")
        reply = json.loads(result.value)
        return reply["holds"], reply.get("fault", "")

    async def _run(self, code: str, timeout_s: float) -> PythonResult:
        assert self._sandbox is not None, "start first"
        return await self._sandbox.python(code, keep=True, timeout_s=timeout_s)

    async def close(self) -> None:
        """Ends it. May be called twice."""
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None
