"""One episode of a Gymnasium text environment, played from the thread that it belongs to: `GymnasiumEpisode`.

What it does: how an environment is shown, acted in and scored (`GymnasiumSettings`, `outcome`). All of it blocks.
What it leaves out: threads and time limits (`gymnasium_text.py`).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serve.environments.adapters.action_spaces import ActSpace
from serve.environments.adapters.ansi import readable
from serve.environments.protocol import Check, EnvironmentFailed, Outcome
from serve.environments.tasks import TaskError

OVER = "The episode is over."
SLACK = 1e-9  # by which sums of rewards may be off


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumSettings:
    """How an environment is shown, acted in and scored."""

    show: Mapping[Any, str] | Callable[[Any], str] | None = None  # an observation as text
    action_names: tuple[str, ...] = ()  # of a Discrete action space, in the order of its numbers
    reward_range: tuple[float, float] | None = None  # of the return: what is -1, and what is 1
    threshold: float | None = None  # the return from which on it is solved; None: that of env.spec

    def __post_init__(self) -> None:
        given = [*(self.reward_range or ()), *([] if self.threshold is None else [self.threshold])]
        if not all(math.isfinite(value) for value in given):
            raise ValueError(f"reward_range {self.reward_range}, threshold {self.threshold}: finite numbers are needed")
        if self.reward_range and self.reward_range[0] >= self.reward_range[1]:
            raise ValueError(f"reward_range {self.reward_range}: the lower end must come first")


class GymnasiumEpisode:
    """From `begin` to `close`."""

    def __init__(self, settings: GymnasiumSettings) -> None:
        self._settings = settings
        self._env: Any = None
        self.space: ActSpace | None = None  # once it has begun
        self.rewards: list[float] = []
        self.over = False

    def begin(self, make: Callable[[], Any], seed: int | None, options: dict[str, Any] | None) -> str:
        """Make the environment and reset it; what is seen."""
        self._env = make()
        space = ActSpace(self._env.action_space, self._settings.action_names)
        observation, _ = self._env.reset(seed=seed, options=options)
        text = self._shown(observation)
        self.space = space
        return text

    def play(self, values: list[Any]) -> str:
        """Act with these values in turn, until it is over; what is seen."""
        texts = []
        for value in values:
            title = f"act({json.dumps(value)}):\n" if len(values) > 1 else ""
            if self.over:
                texts.append(f"{title}not done: the episode was over.")
                continue
            observation, reward, terminated, truncated, _ = self._env.step(self.space.native(value))
            if not math.isfinite(float(reward)):
                raise EnvironmentFailed(f"step gave a reward of {reward}: a finite number is needed")
            self.rewards.append(float(reward))
            self.over = bool(terminated or truncated)
            try:
                texts.append(title + self._shown(observation))
            except TaskError as error:  # too late to refuse the task
                raise EnvironmentFailed(str(error)) from error
        return "\n\n".join([*texts, OVER] if self.over else texts)

    def _shown(self, observation: Any) -> str:
        show = self._settings.show
        if callable(show):
            return str(show(observation))
        if show is not None:
            if observation not in show:
                raise TaskError(f"observation {observation!r} has no text in show")
            return show[observation]
        if isinstance(observation, str):
            return observation
        if getattr(self._env, "render_mode", None) == "ansi":
            return readable(self._env.render())
        raise TaskError(
            f"observation {str(observation)[:80]} of kind {type(observation).__name__} is no text: make the "
            'environment with render_mode="ansi", or give `show`'
        )

    def facts(self) -> dict[str, Any]:
        """How far it is, as JSON."""
        return {"steps": len(self.rewards), "return": math.fsum(self.rewards), "over": self.over}

    def outcome(self) -> Outcome:
        """The outcome of the return so far."""
        given, spec = self._settings.threshold, getattr(self._env, "spec", None)
        threshold = getattr(spec, "reward_threshold", None) if given is None else given
        return outcome(math.fsum(self.rewards), self._settings.reward_range, threshold)

    def close(self) -> None:
        """Close the environment, if it was made."""
        if self._env is not None:
            self._env.close()


def outcome(total: float, reward_range: tuple[float, float] | None, threshold: float | None) -> Outcome:
    """The outcome of a return, by the rules at the top of `gymnasium_text.py`."""
    if reward_range is not None:
        low, high = reward_range
        score = min(1.0, max(-1.0, 2 * (total - low) / (high - low) - 1))
        needed = high if threshold is None else threshold
    elif threshold is not None:
        score, needed = (1.0 if total >= threshold - SLACK else -1.0), threshold
    else:
        score, needed = float((total > 0) - (total < 0)), None
    passed = total > 0 if needed is None else total >= needed - SLACK
    beyond = reward_range is not None and not reward_range[0] <= total <= reward_range[1]
    detail = f"{total:g}; needed: {'more than 0' if needed is None else f'{needed:g} or more'}"
    detail += f"; outside the range {reward_range}" if beyond else ""
    return Outcome(score=score, checks=(Check(name="return", passed=passed, detail=detail),))
