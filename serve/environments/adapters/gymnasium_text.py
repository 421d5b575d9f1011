"""Gymnasium's text environments behind our protocol: one tool, `act(action)`, and what is then seen, as text.

What it does: `GymnasiumEnvironment` for whatever has Gymnasium's `reset`, `step` and `close`; `tasks`, one task a seed;
`from_registry`, which makes environments by Gymnasium's own ids (its only use of that library).
What it leaves out: observations that are neither a text, nor rendered as "ansi", nor shown by the caller; actions
other than those of `action_spaces.py`; Gymnasium's `info`, which need not be JSON.

    environment = GymnasiumEnvironment(from_registry(render_mode="ansi"), GymnasiumSettings(action_names=("left", ...)))
    observation = await environment.reset(tasks("FrozenLake-v1", [7])[0])

Everything of the environment runs in a thread of the episode's own. It is code that you chose and trust: there is no
sandbox around it. The outcome is the return (the sum of all rewards, of an unfinished episode those so far):
  reward_range=(low, high) given:  low is -1, high is 1, in between in proportion, beyond it counts as its end
  else a threshold known:          1 from the threshold up, else -1 (given, or `reward_threshold` of env.spec)
  else:                            the return's sign: 1, 0 or -1
It is solved from the threshold up; without one, at `high`; without either, above 0.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serve.environments.adapters.episode_thread import EpisodeThread
from serve.environments.adapters.gymnasium_episode import OVER, GymnasiumEpisode, GymnasiumSettings
from serve.environments.protocol import Action, EnvironmentFailed, Observation, Outcome, StepResult
from serve.environments.tasks import Limits, Split, Task, TaskError

__all__ = ["GymnasiumEnvironment", "GymnasiumSettings", "from_registry", "tasks"]

MakeEnv = Callable[[str], Any]  # env_id -> an environment with Gymnasium's methods
NO_ACTION = "No action was given: call act with an action."


def from_registry(**options: Any) -> MakeEnv:
    """Environments by Gymnasium's ids, with these options of `gymnasium.make` (render_mode="ansi").

    Raises:
        ValueError: gymnasium is not installed.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ValueError(
            "gymnasium is not installed: install 'gymnasium>=1.1', or give a make_env of your own"
        ) from error
    return lambda env_id: gymnasium.make(env_id, **options)


def tasks(
    env_id: str, seeds: Iterable[int], *, instruction: str | None = None, options: Mapping[str, Any] | None = None,
    limits: Limits | None = None, track: str = "tool_call", split: Split = "train", difficulty: int = 3,
) -> tuple[Task, ...]:  # fmt: skip
    """One task a seed. `options` go to the environment's `reset`; the skill is the environment."""
    name = "".join(one if (one.isascii() and one.isalnum()) or one in "_.-" else "-" for one in env_id)[:60]
    text = instruction or f"Play {env_id}: act until the episode is over, for as high a return as you can get."
    return tuple(
        Task(
            task_id=f"{name}-{seed}", track=track, skill=name, split=split, difficulty=difficulty, instruction=text,
            limits=limits or Limits(), payload={"env_id": env_id, "seed": seed, "options": dict(options or {})},
        )
        for seed in seeds
    )  # fmt: skip


class GymnasiumEnvironment:
    """One episode at a time."""

    def __init__(self, make_env: MakeEnv, settings: GymnasiumSettings | None = None) -> None:
        self._make_env, self._settings = make_env, settings or GymnasiumSettings()
        self._limits = Limits()
        self._thread: EpisodeThread | None = None
        self._episode = GymnasiumEpisode(self._settings)

    async def reset(self, task: Task) -> Observation:
        """A new environment, reset by the task's seed; `facts["tools"]` has the declaration of `act`.

        Raises:
            TaskError: this is no such task, or its environment can't be shown or acted in by text.
            EnvironmentFailed: the environment can't be made or reset.
        """
        env_id, seed, options = _payload(task)
        await self.close()
        episode = self._episode  # a thread that comes late must not meet the next one
        self._limits = task.limits
        self._thread = EpisodeThread(f"gymnasium-{task.task_id}")

        def begin() -> str:
            return episode.begin(lambda: self._make_env(env_id), seed, options or None)

        text = await self._thread.call(begin, self._limits.step_s, f"{env_id}: reset")
        return Observation(text=text, facts={"tools": self.tools()})

    def tools(self) -> list[dict[str, Any]]:
        """The tool of the environment that was reset last."""
        self._running()
        return [self._episode.space.tool()]

    async def step(self, action: Action) -> StepResult:
        """Carry out the action's calls of `act`, in order, until the episode is over. With one faulty call, none.

        Raises:
            EnvironmentFailed: the environment raised, or took longer than the task's `step_s`.
        """
        thread, episode = self._running(), self._episode
        if episode.over:
            return StepResult(observation=Observation(text=OVER, facts=episode.facts()), done=True)
        faults = (episode.space.fault(call) for call in action.calls)
        fault = action.fault or next((one for one in faults if one), None if action.calls else NO_ACTION)
        if fault:
            text = f"{fault} Nothing happened."
            return StepResult(observation=Observation(text=text, facts=episode.facts() | {"fault": fault}), done=False)
        values = [call.arguments["action"] for call in action.calls]
        text = await thread.call(lambda: episode.play(values), self._limits.step_s, "step")
        return StepResult(observation=Observation(text=text, facts=episode.facts()), done=episode.over)

    async def evaluate(self) -> Outcome:
        """The return, mapped as the module says."""
        self._running()
        return self._episode.outcome()

    async def close(self) -> None:
        """Close the environment and end its thread.

        Raises:
            EnvironmentFailed: the environment's own `close` raised, or did not return.
        """
        thread, episode = self._thread, self._episode
        self._thread, self._episode = None, GymnasiumEpisode(self._settings)
        if thread is not None:
            await thread.end(episode.close, self._limits.step_s)

    def _running(self) -> EpisodeThread:
        if self._thread is None or self._episode.space is None:
            raise EnvironmentFailed("no episode runs here: reset comes first")
        self._thread.check()
        return self._thread


def _payload(task: Task) -> tuple[str, int | None, dict[str, Any]]:
    env_id, seed, options = (task.payload.get(name) for name in ("env_id", "seed", "options"))
    where = task.source or task.task_id
    if not isinstance(env_id, str) or not env_id:
        raise TaskError(f"{where}: env_id: {env_id!r}: the id of an environment is needed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise TaskError(f"{where}: seed: {seed!r}: a whole number from 0 up is needed")
    if options is not None and not isinstance(options, dict):
        raise TaskError(f"{where}: options: {options!r}: an object is needed")
    return env_id, seed, options or {}
