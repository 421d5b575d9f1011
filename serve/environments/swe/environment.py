"""A repository with a fault, a shell to find and mend it, and hidden tests in the end.

What it does: `SweEnvironment`, one episode at a time. The next state is what a command printed, its exit code, and the
difference to the first commit where the step changed it.
What it leaves out: the sandbox (`../sandbox/`), repositories (`repository.py`), the patch (`patches.py`), its judging
(`evaluation.py`), the number of steps and the length of an episode, which its driver counts.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

from serve.environments.protocol import MAX_CALLS, Action, Check, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.sandbox import Sandbox
from serve.environments.swe import evaluation
from serve.environments.swe.observing import of_change, of_command, of_start
from serve.environments.swe.patches import REPO, NoPatch, Watch, change_directory, unpack
from serve.environments.swe.payload import Payload, of_task
from serve.environments.swe.repository import Base, at_commit, shipped
from serve.environments.swe.rows import find_repository
from serve.environments.tasks import Task, TaskError
from serve.environments.terminal.calls import LEAST_S, Room, fault_of, title, too_many

ENTER_S = 10.0


class SweEnvironment:
    """Tools `bash(command)` and `submit()`. `start` gives a fresh sandbox for (limits, packages).

    `repositories`: the folder with the repositories of tasks that are not ours. Such tasks are verified before their
    first episode: their tests must fail and pass as they say.
    """

    def __init__(self, start: evaluation.Start = Sandbox.start, repositories: Path | None = None) -> None:
        self._start, self._repositories = start, repositories
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None
        self._payload: Payload | None = None
        self._base: Base | None = None
        self._watch: Watch | None = None
        self._cwd = REPO

    async def reset(self, task: Task) -> Observation:
        """A fresh sandbox with the repository; where it lies and what it holds.

        Raises:
            TaskError: this is no task of this track, or one that can't be judged.
            EnvironmentFailed: no sandbox starts, or the repository can't be had.
        """
        if task.track != "swe":
            raise TaskError(f"{task.source}: task {task.task_id!r} is of the track {task.track!r}, not swe")
        await self.close()
        payload = of_task(task.payload, task.source)
        base = await asyncio.to_thread(self._find, payload, task.source)
        if not payload.bug:
            await evaluation.verify(self._start, task.limits, base, payload, task.source)
        sandbox = self._sandbox = await self._start(task.limits, packages=evaluation.PACKAGES)
        await unpack(sandbox, base)
        self._task, self._payload, self._base, self._cwd = task, payload, base, REPO
        self._watch = Watch(sandbox, base)
        await self._enter(sandbox)
        return Observation(text=of_start(base), facts={"cwd": REPO, "base_commit": base.commit})

    def _find(self, payload: Payload, source: str) -> Base:
        if payload.bug:
            try:
                return shipped(payload.repository, payload.bug)
            except ValueError as error:
                raise TaskError(f"{source}: bug: {error}") from error
        if self._repositories is None:
            raise TaskError(f"{source}: repository: {payload.repository!r} is not ours, and no folder was given for it")
        path = find_repository(self._repositories, payload.repository)
        if path is None:
            raise EnvironmentFailed(f"{self._repositories} has no repository {payload.repository!r}")
        return at_commit(path, payload.base_commit)

    async def step(self, action: Action) -> StepResult:
        """Run the action's commands in the persistent shell, in order, within the task's `step_s` together.

        At most `MAX_CALLS` are run, and all of them together are shown about as much as one may be.

        Raises:
            EnvironmentFailed: the sandbox ended.
        """
        sandbox, watch = self._running()
        if fault := action.fault or fault_of(action.calls, "submit", "the repository is mended", ("command",)):
            return StepResult(observation=Observation(text=fault, facts={"fault": fault, "cwd": self._cwd}), done=False)
        limits, texts = self._task.limits, []
        until, room = time.monotonic() + limits.step_s, Room(limits.output_chars)
        facts: dict[str, Any] = {"exit_code": None, "cwd": self._cwd, "diff_changed": False}
        done = False
        for number, call in enumerate(action.calls, 1):
            if number > MAX_CALLS:
                texts.append(too_many(number))
                break
            if call.name == "submit":
                texts.append("Submitted. The episode is over.")
                done = facts["done"] = True
                break
            command = call.arguments["command"]
            above = title(command) if len(action.calls) > 1 else ""
            if (left_s := until - time.monotonic()) < LEAST_S:
                texts.append(f"{above}not run: the {limits.step_s:g} s of this step are used up")
                continue
            text, own_facts = await self._run(sandbox, command, left_s)
            texts.append(above + room.shown(text))
            facts |= own_facts
        if any(call.name == "bash" for call in action.calls):
            text, own_facts = await self._look(watch)
            texts += [text] if text else []
            facts |= own_facts
        facts |= {"files_changed": list(watch.last.files)}
        return StepResult(observation=Observation(text="\n".join(texts), facts=facts), done=done)

    async def _run(self, sandbox: Sandbox, command: str, time_s: float) -> tuple[str, dict[str, Any]]:
        try:
            result = await sandbox.shell(command, timeout_s=time_s)
        except ValueError as error:  # longer than a command may be
            return f"not run: {error}", {"exit_code": None}
        text = of_command(result, self._cwd, round(time_s, 1))
        self._cwd = result.cwd
        if result.shell_restarted:
            await self._enter(sandbox)
        return text, {
            "exit_code": result.exit_code,
            "cwd": self._cwd,
            "timed_out": result.timed_out,
            "ended": result.ended,
        }

    async def _look(self, watch: Watch) -> tuple[str, dict[str, Any]]:
        try:
            difference, changed = await watch.look()
        except NoPatch as error:
            return f"The difference to the base commit can't be shown: {error}", {}
        if not changed:
            return "", {"diff_changed": False}
        return of_change(difference, self._task.limits.output_chars), {"diff_changed": True}

    async def _enter(self, sandbox: Sandbox) -> None:
        """Bring the shell to the repository; where it is gone, it stays where it starts."""
        self._cwd = (await sandbox.shell(change_directory(REPO), timeout_s=ENTER_S)).cwd

    async def evaluate(self) -> Outcome:
        """End what runs, take the patch, and judge it in a sandbox of its own.

        Raises:
            EnvironmentFailed: it can't be judged, and that is not the policy's doing.
        """
        sandbox, watch = self._running()
        await sandbox.clear()
        try:
            patch = (await watch.take()).patch
        except NoPatch as error:
            return Outcome.of((Check(name="a patch can be taken", passed=False, detail=str(error)),))
        await sandbox.close()  # its memory goes to the one that judges
        return await evaluation.judge(self._start, self._task.limits, self._base, self._payload, patch)

    async def close(self) -> None:
        """End the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    def _running(self) -> tuple[Sandbox, Watch]:
        if self._sandbox is None or self._watch is None:
            raise EnvironmentFailed("no episode runs here: reset comes first")
        return self._sandbox, self._watch
