"""Environments of the `verifiers` library (0.4) behind our protocol, as far as they can be driven from outside.

What it does: `VerifiersEnvironment` over a `Taskset` (one answer, or tools until an answer) or an `Env` with one agent
(its `run` asks for answers, turn by turn, as long as it likes); `tasks`, one task a row.

    environment = VerifiersEnvironment(taskset)                       # or an Env
    observation = await environment.reset(tasks(taskset, count=100)[0])

Actions: a text is the answer; calls are those of the task's toolsets (`facts["tools"]` of the first observation).
The outcome is the weighted sum of the rewards, r: 2r - 1 for the range (0, 1), else 2 (r - low) / (high - low) - 1;
solved at the upper end. A sum outside the range is a failure that says so, no score.

What it leaves out, and refuses with the reason: its own rollout loop (harnesses, interception, @stop and @intercept),
judges, which need a model to ask, containers and runtimes, several agents, pictures, `start` and `stop` of an Env.
Its code runs in a thread of the episode's own, in this process: without a sandbox, so only what you trust.
"""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

from serve.environments.adapters.episode_thread import EpisodeThread, guarded
from serve.environments.adapters.verifiers_fit import VerifiersLibrary, folded
from serve.environments.adapters.verifiers_seat import Line, Seat
from serve.environments.protocol import Action, Check, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Limits, Split, Task, TaskError

SLACK = 1e-9  # by which sums of rewards may be off


def tasks(
    source: Any, *, count: int | None = None, limits: Limits | None = None, track: str = "tool_call",
    skill: str | None = None, split: Split = "train", difficulty: int = 3,
) -> tuple[Task, ...]:  # fmt: skip
    """The first `count` rows of a Taskset, or of an Env's, as tasks; the payload holds the row, with its answer.

    Raises:
        ValueError: an endless taskset, and no count.
        TaskError: a row's prompt can't be shown as text.
    """
    taskset = getattr(source, "taskset", source)
    if count is None and not taskset.bounded:
        raise ValueError(f"{type(taskset).__name__} never ends: say how many tasks are wanted (count)")
    name = skill or type(taskset).__name__
    made = []
    for place, row in enumerate(itertools.islice(taskset, count)):
        try:
            instruction = folded(row.data)
        except ValueError as error:
            raise TaskError(f"{name}, row {place}: {error}") from error
        made.append(
            Task(
                task_id=f"{name}-{place}", track=track, skill=name, split=split, difficulty=difficulty,
                instruction=instruction, limits=limits or Limits(),
                payload={"row": row.data.model_dump(mode="json", exclude_none=True)},
            )
        )  # fmt: skip
    return tuple(made)


class VerifiersEnvironment:
    """One episode at a time, of a Taskset or an Env that the caller has loaded."""

    def __init__(self, source: Any, *, reward_range: tuple[float, float] = (0.0, 1.0), library: Any = None) -> None:
        if not all(map(math.isfinite, reward_range)) or reward_range[0] >= reward_range[1]:
            raise ValueError(f"reward_range {reward_range}: two finite numbers are needed, the lower first")
        self._source, self._range = source, reward_range
        self._library = library or VerifiersLibrary()
        self._limits = Limits()
        self._thread: EpisodeThread | None = None
        self._episode: _Episode | None = None

    async def reset(self, task: Task) -> Observation:
        """Begin with the task's row; what the user says, where that is not the instruction.

        Raises:
            TaskError: the row is none of this taskset, or can't be played from outside; says why.
            EnvironmentFailed: the environment raised.
        """
        await self.close()
        self._limits = task.limits
        thread = self._thread = EpisodeThread(f"verifiers-{task.task_id}")

        async def begin() -> tuple[_Episode, str | None]:
            episode = _Episode(self._source, task, self._library)
            return episode, await episode.next()

        episode, seen = await thread.call(begin, self._limits.step_s, "the environment's beginning")
        if seen is None:
            raise EnvironmentFailed("the environment was over before its agent was asked for anything")
        self._episode = episode
        return Observation(text=seen, facts={"tools": episode.tools()})

    async def step(self, action: Action) -> StepResult:
        """Give the environment this answer, or run these calls. A faulty action changes nothing.

        Raises:
            EnvironmentFailed: the environment or its scoring raised, or took longer than the task's `step_s`.
        """
        thread, episode = self._running()
        if episode.over:
            return StepResult(observation=Observation(text="The episode is over."), done=True)
        if fault := episode.fault(action):
            return StepResult(observation=Observation(text=fault, facts={"fault": fault}), done=False)
        seen = await thread.call(lambda: episode.answer(action), self._limits.step_s, "the environment's turn")
        return StepResult(observation=Observation(text=seen or "The episode is over."), done=seen is None)

    async def evaluate(self) -> Outcome:
        """The rewards that the task recorded; of an unfinished episode, after its agent has said no more.

        Raises:
            EnvironmentFailed: no reward was recorded, or one outside the range.
        """
        thread, episode = self._running()
        await thread.call(episode.finish, self._limits.step_s, "the scoring")
        return _outcome(episode.trace, self._range)

    async def close(self) -> None:
        """End the environment's run and its thread."""
        thread, self._thread, self._episode = self._thread, None, None
        if thread is not None:
            await thread.end(lambda: None, self._limits.step_s)

    def _running(self) -> tuple[EpisodeThread, "_Episode"]:
        if self._thread is None or self._episode is None:
            raise EnvironmentFailed("no episode runs here: reset comes first")
        self._thread.check()
        return self._thread, self._episode


class _Episode:
    """Lives in the thread's loop: the environment's run as a task of it, and the line to it."""

    def __init__(self, source: Any, task: Task, library: Any) -> None:
        self._library, self._line, self.over = library, Line(), False
        self._env = source if hasattr(source, "taskset") else None
        taskset = getattr(source, "taskset", source)
        row = _row(taskset, task)
        self._seats: list[Seat] = []

        def seat(_: str, spec: Any) -> Seat:
            self._seats.append(Seat(spec, self._line, library, taskset, task.instruction))
            return self._seats[-1]

        if self._env is None:
            run: Callable[[], Any] = lambda: seat("agent", library.v1.AgentConfig()).run(row)  # noqa: E731
        else:
            agents = library.v1.Agents(self._env.config, seat)
            self._check_env()
            run = lambda: self._run_env(row, agents)  # noqa: E731
        self._task = asyncio.create_task(self._drive(run))

    def _check_env(self) -> None:
        kind, base = type(self._env), self._library.v1.Env
        if len(self._seats) != 1:
            raise TaskError(f"{kind.__name__} has {len(self._seats)} agents: one policy can play only one")
        if kind.start is not base.start or kind.stop is not base.stop:
            raise TaskError(f"{kind.__name__} shares what its start() brings up: that is not driven from here")
        if any(isinstance(value, self._library.v1.JudgeConfig) for value in vars(self._env.config).values()):
            raise TaskError(f"{kind.__name__} has a judge, and a judge needs a model to ask")

    async def _run_env(self, row: Any, agents: Any) -> None:
        v1 = self._library.v1
        await self._env.setup(agents)
        await self._env.run(row, agents)
        if self._seats[0].conversation is None:
            raise EnvironmentFailed("the environment's run() did not run its agent")
        about = v1.TraceTask(type=type(row).__name__, data=row.data, key=row.key, hash=row.hash)
        episode = v1.Episode(env=v1.EnvInfo(id=self._env.config.env_id), task=about, traces=[self.trace])
        await self._env.finalize(row, episode)

    async def _drive(self, run: Callable[[], Any]) -> None:
        try:
            await guarded(run, "the environment")
            self._line.events.put_nowait(None)
        except (EnvironmentFailed, TaskError) as error:
            self._line.events.put_nowait(error)

    @property
    def trace(self) -> Any:
        """Their record of the run."""
        return self._seats[0].conversation.trace

    def tools(self) -> list[dict[str, Any]]:
        """The tools that the agent has, as OpenAI function declarations."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for name, (_, tool) in self._seats[0].conversation.tools.items()
        ]

    def fault(self, action: Action) -> str | None:
        """What is wrong with this answer, said so that it can be mended; None where nothing is."""
        known = self._seats[0].conversation.tools
        if action.fault:
            return action.fault
        if strange := next((call.name for call in action.calls if call.name not in known), None):
            return f"There is no tool {strange[:80]!r}: there are {', '.join(known) or 'none, answer in words'}."
        return None if action.calls or action.text.strip() else "The answer is empty."

    async def next(self) -> str | None:
        """What is asked next; None once it is over."""
        event = await self._line.events.get()
        self.over = not isinstance(event, str)
        if isinstance(event, Exception):
            raise event
        return event

    async def answer(self, action: Action | None) -> str | None:
        """Answer (None: no more), and see what is asked next."""
        self._line.answers.put_nowait(action)
        try:
            return await self.next()
        except TaskError as error:  # too late to refuse the task
            raise EnvironmentFailed(str(error)) from error

    async def finish(self) -> None:
        """Tell an environment that still waits that there are no more answers."""
        if not self.over and await self.answer(None) is not None:
            raise EnvironmentFailed("the environment asks on although its agent has said that there is no more")


def _row(taskset: Any, task: Task) -> Any:
    kind = taskset.task_type()
    try:
        return kind(kind.data_type().model_validate(task.payload["row"]), taskset.config.task)
    except (KeyError, ValueError) as error:
        raise TaskError(f"{task.source or task.task_id}: row: no row of {type(taskset).__name__}: {error}") from error


def _outcome(trace: Any, reward_range: tuple[float, float]) -> Outcome:
    rewards, (low, high) = trace.rewards, reward_range
    if not rewards or None in rewards.values():
        missing = ", ".join(name for name, reward in rewards.items() if reward is None) or "any"
        raise EnvironmentFailed(f"the task did not record {missing} reward: nothing was evaluated")
    detail = ", ".join(f"{name} {reward.score:g} x {reward.weight:g}" for name, reward in rewards.items())
    total = float(trace.reward)
    if not low - SLACK <= total <= high + SLACK:
        raise EnvironmentFailed(f"the rewards make {total:g} ({detail}), outside ({low:g}, {high:g}): set reward_range")
    score = min(1.0, max(-1.0, 2 * (total - low) / (high - low) - 1))
    passed = total >= high - SLACK
    return Outcome(score=1.0 if passed else score, checks=(Check(name="reward", passed=passed, detail=detail),))
