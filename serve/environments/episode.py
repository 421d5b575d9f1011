"""One episode: a policy in an environment, from reset to outcome.

What it does: `run_episode` shows the policy what it may see, reads its answer, carries it out, until done or a limit;
then evaluates. It returns the `Episode` record, and for each step the exact messages that the policy was given.
What it leaves out: judging the steps (`judge_steps.py`), leases (`pool.py`), storing (whoever asked).

How it ends: `done` (the policy or the environment said so) and `truncated` (steps or time used up) are evaluated;
`error` has a reason and no outcome, whatever failed: environment, policy, or checks. An error is never a low score.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from judge.steps import action_text
from serve.environments.catalog import TrackModule, track
from serve.environments.context import ContextSettings, Conversation, Turn
from serve.environments.leases import LATE_S
from serve.environments.prompts import Format, Message, first_messages, read_answer, result_messages, text_of
from serve.environments.protocol import Action, Environment, EnvironmentFailed, Observation, Outcome
from serve.environments.tasks import Task, TaskError
from storage.records import Episode, Step

SUMMARY_CHARS = 160


class PolicyFailed(Exception):
    """The policy gave no answer: an engine is down, a key is wrong, a person hung up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """What a policy is asked."""

    episode_id: str
    task: Task
    index: int  # of the step, from 0
    messages: list[Message]  # exactly what it may see
    tools: list[dict[str, Any]] | None  # None in the plain format
    observation: Observation  # the last one, for scripted policies


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """What it answered."""

    message: Message  # the assistant message
    exchange_id: str | None = None  # of the exchange that the gateway recorded


class Policy(Protocol):
    """Who acts."""

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        """The next answer.

        Raises:
            PolicyFailed: there is none.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """One step as it was: what was seen, answered, done, and what followed."""

    messages: list[Message]
    answer: Message
    action: Action
    before: Observation
    after: Observation
    exchange_id: str | None
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRun:
    """An episode and all that was seen in it."""

    episode: Episode
    task: Task
    steps: tuple[SeenStep, ...]
    outcome: Outcome | None

    def to_json(self) -> dict[str, Any]:
        """For people and programs that read it: what was said and seen, the checks, how it ended. No pictures."""
        episode = self.episode
        return {
            "task_id": self.task.task_id, "track": self.task.track, "skill": self.task.skill,
            "episode_id": episode.episode_id, "status": episode.status, "reason": episode.reason,
            "outcome": None if self.outcome is None else self.outcome.to_json(),
            "started_at": episode.started_at, "ended_at": episode.ended_at,
            "prompt": [_without_pictures(message) for message in self.steps[0].messages] if self.steps else [],
            "steps": [
                {
                    "answer": step.answer, "observation": step.after.text, "exchange_id": step.exchange_id,
                    "fault": step.action.fault, "duration_s": step.duration_s,
                }
                for step in self.steps
            ],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings:
    """How an episode is run."""

    form: Format = "tools"
    context: ContextSettings = field(default_factory=ContextSettings)
    images: bool = True  # whether the policy is shown pictures


async def run_episode(
    environment: Environment, task: Task, policy: Policy, *, episode_id: str, group_id: str = "",
    settings: EpisodeSettings = EpisodeSettings(), on_step: Callable[[SeenStep], None] | None = None,
) -> EpisodeRun:  # fmt: skip
    """Play one task. The environment is left open: closing is its owner's matter.

    Args:
        environment: fresh, or leased.
        task: what to do.
        policy: who does it.
        episode_id: the key of the episode, so that it can be resumed: the same key, the same episode.
        group_id: episodes of one task that are compared with each other.
        on_step: told of each step, for progress.
    """
    player = _Player(environment, task, policy, episode_id, settings, on_step)
    started = time.time()
    status, reason, outcome = "error", None, None
    try:
        async with asyncio.timeout(task.limits.episode_s + LATE_S):
            status = await player.play()
            outcome = await environment.evaluate()
    except TimeoutError:
        status, reason = "error", f"the episode was stuck: not over {LATE_S:g} s after its {task.limits.episode_s:g} s"
    except (EnvironmentFailed, TaskError) as error:
        status, reason = "error", f"environment: {error}"
    except PolicyFailed as error:
        status, reason = "error", f"policy: {error}"
    except Exception as error:  # boundary: whatever an environment raises ends its own episode only
        status, reason = "error", f"environment: it raised {type(error).__name__}: {error}"
    episode = Episode(
        episode_id=episode_id, task_id=task.task_id, track=task.track, group_id=group_id or task.task_id,
        steps=tuple(_record(index, step) for index, step in enumerate(player.steps)),
        outcome=outcome.score if outcome else None, process_rewards=(), status=status, reason=reason,
        started_at=started, ended_at=time.time(),
    )  # fmt: skip
    return EpisodeRun(episode=episode, task=task, steps=tuple(player.steps), outcome=outcome)


class _Player:
    """The steps of one episode."""

    def __init__(
        self, environment: Environment, task: Task, policy: Policy, episode_id: str, settings: EpisodeSettings,
        on_step: Callable[[SeenStep], None] | None,
    ) -> None:  # fmt: skip
        self._environment, self._task, self._policy = environment, task, policy
        self._episode_id, self._settings, self._on_step = episode_id, settings, on_step
        self._module: TrackModule = track(task.track)
        self.steps: list[SeenStep] = []

    async def play(self) -> str:
        """Until done or truncated."""
        began = time.monotonic()
        seen = await self._environment.reset(self._task)
        form = self._settings.form
        first = first_messages(self._module, self._task, self._shown(seen), form)
        conversation = Conversation(first, self._settings.context)
        while len(self.steps) < self._task.limits.steps:
            left_s = began + self._task.limits.episode_s - time.monotonic()
            if left_s <= 0 or (given := await self._answer(conversation.messages(), seen, left_s)) is None:
                return "truncated"
            step, done = await self._step(*given, seen)
            self.steps.append(step)
            if self._on_step is not None:
                self._on_step(step)
            if done:
                return "done"
            seen = step.after
            results = result_messages(step.answer, self._shown(seen), form)
            conversation.add(Turn(step.answer, tuple(results), _summary(step)))
        return "truncated"

    async def _answer(
        self, messages: list[Message], seen: Observation, left_s: float
    ) -> tuple[list[Message], PolicyAnswer, float] | None:
        """What was shown, what the policy answered, and when it was asked; None where the episode's time ran out."""
        began = time.monotonic()
        tools = self._module.tools(self._task) if self._settings.form == "tools" else None
        request = PolicyRequest(
            episode_id=self._episode_id, task=self._task, index=len(self.steps), messages=messages, tools=tools,
            observation=seen,
        )  # fmt: skip
        try:
            async with asyncio.timeout(left_s) as limit:
                answer = await self._policy.act(request)
        except PolicyFailed:
            raise
        except Exception as error:  # boundary: whatever a policy raises ends its own episode only
            if limit.expired():
                return None
            raise PolicyFailed(f"it raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, PolicyAnswer) or not isinstance(answer.message, dict):
            raise PolicyFailed(f"it gave {str(answer)[:80]}: a PolicyAnswer with an assistant message is needed")
        return messages, replace(answer, message=_plain(answer.message)), began

    async def _step(
        self, messages: list[Message], answer: PolicyAnswer, began: float, seen: Observation
    ) -> tuple[SeenStep, bool]:
        action = read_answer(self._module, self._task, answer.message, self._settings.form)
        result = await self._environment.step(action)
        step = SeenStep(
            messages=messages, answer=answer.message, action=action, before=seen, after=result.observation,
            exchange_id=answer.exchange_id, duration_s=time.monotonic() - began,
        )  # fmt: skip
        return step, result.done

    def _shown(self, seen: Observation) -> Observation:
        return seen if self._settings.images else Observation(text=seen.text, facts=seen.facts)


def _without_pictures(message: Message) -> Message:
    return {**message, "content": text_of(message)} if isinstance(message.get("content"), list) else message


def _plain(answer: Message) -> Message:
    """An answer as it is shown again: its words, without the parts that some APIs answer in."""
    parts = isinstance(answer.get("content"), list)
    return _sendable({**answer, "content": text_of(answer)} if parts else answer)


def _sendable(value: Any) -> Any:
    """The same without halves of surrogate pairs, which can be neither sent nor stored."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _sendable(one) for key, one in value.items()}
    return [_sendable(one) for one in value] if isinstance(value, list) else value


def told(action: Action) -> str:
    """An action as text, for judges and records: its words, then its calls."""
    text = action_text(action.text, [(call.name, call.arguments) for call in action.calls])
    return text if action.fault is None else f"{text}\n(could not be read: {action.fault})".strip()


def _record(index: int, step: SeenStep) -> Step:
    return Step(
        index=index, exchange_id=step.exchange_id, action=told(step.action), observation=step.after.text,
        reward=None, messages=None if step.exchange_id else step.messages,
    )  # fmt: skip


def _summary(step: SeenStep) -> str:
    facts = step.after.facts
    code = f" -> exit code {facts['exit_code']}" if "exit_code" in facts else ""
    done = " ".join(told(step.action).split())
    gave = " ".join(step.after.text.split())
    return f"{done[:SUMMARY_CHARS]}{code} -> {gave[:SUMMARY_CHARS]}"
