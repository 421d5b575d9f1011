"""A bash shell in a sandbox, and a task to do in it.

What it does: `TerminalEnvironment`, one episode at a time: set-up, commands in one persistent shell, checks at the end.
What it leaves out: the sandbox itself (`../sandbox/`), the words of an observation (`observing.py`), checks
(`evaluation.py`, `verdicts.py`), the number of steps and the length of an episode, which its driver counts.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from serve.environments.protocol import MAX_CALLS, Action, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.sandbox import CommandResult, Sandbox
from serve.environments.tasks import Task, TaskError
from serve.environments.terminal import evaluation, observing, verdicts
from serve.environments.terminal.calls import LEAST_S, Room, fault_of, title, too_many
from serve.environments.terminal.payload import SETUP_S, contents, read_payload

WORK = "/work"
TAKES = ("command", "timeout_s")  # of bash
LIST = """\
shopt -s dotglob nullglob
all=(*)
printf '%s\\0' "${#all[@]}"
for name in "${all[@]:0:LISTED}"; do [[ -d $name && ! -L $name ]] && name+=/; printf '%s\\0' "$name"; done
""".replace("LISTED", str(observing.LISTED))


class TerminalEnvironment:
    """Tools `bash(command, timeout_s)` and `done()`. `start` gives a sandbox, as `Sandbox.start` does."""

    def __init__(self, start: Callable[..., Awaitable[Sandbox]] = Sandbox.start) -> None:
        self._start = start
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None
        self._payload: dict[str, Any] = {}
        self._cwd = WORK

    async def reset(self, task: Task) -> Observation:
        """A fresh sandbox with the task's files, set up; where the shell is and what lies there.

        Raises:
            TaskError: this is no terminal task.
            EnvironmentFailed: no sandbox starts, or the task's set-up failed.
        """
        if task.track != "terminal":
            raise TaskError(f"{task.source}: task {task.task_id!r} is of the track {task.track!r}, not terminal")
        await self.close()
        self._payload = read_payload(task.payload, lambda name, what: TaskError(f"{task.source}: {name}: {what}"))
        self._task, self._cwd = task, WORK
        packages = tuple(self._payload.get("tests", {}).get("packages", ()))
        sandbox = self._sandbox = await self._start(task.limits, packages=packages, warm=("shell",))
        await self._write_files(sandbox)
        names = sorted({f"{path.partition('/')[0]}{'/' * ('/' in path)}" for path in self._payload["files"]})
        count = len(names)
        if self._payload["setup"].strip():
            await self._set_up(sandbox)
            count, names = await self._listing(sandbox)
        return Observation(text=observing.of_start(names, count), facts={"cwd": WORK})

    async def _write_files(self, sandbox: Sandbox) -> None:
        by_mode: dict[int, dict[str, bytes]] = {}
        for path, file in self._payload["files"].items():
            by_mode.setdefault(file["mode"], {})[f"{WORK}/{path}"] = contents(file)
        for mode, some in by_mode.items():
            try:
                await sandbox.write(some, mode=mode)
            except OSError as error:
                raise EnvironmentFailed(f"a file of the task can't be written: {error}") from error

    async def _set_up(self, sandbox: Sandbox) -> None:
        result = await evaluation.script(sandbox, f"set -e\n{self._payload['setup']}", SETUP_S, None)
        if result.exit_code != 0 or result.timed_out or result.ended:
            last = "\n".join((result.stdout + result.stderr).splitlines()[-10:])
            how = (
                f"stopped after {SETUP_S:g} s" if result.timed_out else result.ended or f"exit code {result.exit_code}"
            )
            raise EnvironmentFailed(f"the set-up of {self._task.task_id} failed: {how}\n{last}")
        await sandbox.clear()

    async def _listing(self, sandbox: Sandbox) -> tuple[int, list[str]]:
        """How many entries /work has, and the names of the first."""
        result = await evaluation.script(sandbox, LIST, SETUP_S, evaluation.CLEAN)
        if result.exit_code != 0:
            raise EnvironmentFailed(f"{WORK} can't be listed: {result.stderr.strip()[-300:]}")
        count, *names = result.stdout.split("\0")[:-1]
        return int(count), names

    async def step(self, action: Action) -> StepResult:
        """Run the action's commands in the persistent shell, in order, within the task's `step_s` together.

        At most `MAX_CALLS` are run, and all of them together are shown about as much as one may be.

        Raises:
            EnvironmentFailed: the sandbox ended.
        """
        sandbox, limits = self._running(), self._task.limits
        if fault := action.fault or fault_of(action.calls, "done", "the task is finished", TAKES):
            return StepResult(observation=Observation(text=fault, facts={"fault": fault, "cwd": self._cwd}), done=False)
        until, texts, room = time.monotonic() + limits.step_s, [], Room(limits.output_chars)
        facts: dict[str, Any] = {"cwd": self._cwd}
        for number, call in enumerate(action.calls, 1):
            if number > MAX_CALLS:
                texts.append(too_many(number))
                break
            if call.name == "done":
                texts.append("The episode is over.")
                facts["done"] = True
                return StepResult(observation=Observation(text="\n\n".join(texts), facts=facts), done=True)
            command, asked_s = call.arguments["command"], call.arguments.get("timeout_s", limits.step_s)
            above = title(command) if len(action.calls) > 1 else ""
            if (left_s := until - time.monotonic()) < LEAST_S:
                texts.append(f"{above}not run: the {limits.step_s:g} s of this step are used up")
                continue
            text, result = await self._run(sandbox, command, min(asked_s, left_s), asked_s)
            texts.append(above + room.shown(text))
            facts = {
                "exit_code": result.exit_code, "cwd": result.cwd, "timed_out": result.timed_out, "ended": result.ended,
                "duration_s": facts.get("duration_s", 0.0) + result.duration_s,
            }  # fmt: skip
        return StepResult(observation=Observation(text="\n\n".join(texts), facts=facts), done=False)

    async def _run(self, sandbox: Sandbox, command: str, time_s: float, asked_s: float) -> tuple[str, CommandResult]:
        try:
            result = await sandbox.shell(command, timeout_s=time_s)
        except ValueError as error:  # longer than a command may be
            result = CommandResult(
                exit_code=126, stdout="", stderr=f"not run: {error}", stdout_cut=0, stderr_cut=0, timed_out=False,
                ended=None, duration_s=0.0, cwd=self._cwd,
            )  # fmt: skip
        text = observing.of_command(command, result, self._cwd, round(time_s, 1))
        if asked_s > self._task.limits.step_s:
            text += f"\ntimeout_s {asked_s:g} is more than the {self._task.limits.step_s:g} s that one step may take"
        self._cwd = result.cwd
        return text, result

    async def evaluate(self) -> Outcome:
        """End what runs, then look at what is there.

        Raises:
            EnvironmentFailed: a check can't be run.
        """
        sandbox = self._running()
        await sandbox.clear()
        if "tests" in self._payload:
            return await verdicts.run_tests(sandbox, self._payload["tests"])
        return await evaluation.run_checks(sandbox, self._payload["checks"])

    async def close(self) -> None:
        """End the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise EnvironmentFailed("no episode runs here: reset comes first")
        return self._sandbox
