"""The one protocol of every environment, and the plain values that cross it.

What it does: `Environment` (reset, step, evaluate, close) and its values: `Observation`, `Action`, `StepResult`,
`Outcome`. Each value has `to_json` and `from_json`, so that the same protocol goes over HTTP (`http_server.py`).
What it leaves out: tasks (`tasks.py`), leases (`pool.py`), how a model's answer becomes an `Action` (`prompts.py`).

An environment that can't go on raises `EnvironmentFailed`: the episode ends as `error` with that reason. A bad action
of the policy is no failure: it gives an observation that says what was wrong.
"""

import base64
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from serve.environments.tasks import Task

Track = Literal["terminal", "tool_call", "swe", "gui"]
TRACKS: tuple[Track, ...] = ("terminal", "tool_call", "swe", "gui")


MAX_CALLS = 16  # of one answer, in every track


class EnvironmentFailed(Exception):
    """The environment, not the policy, failed: the episode ends as `error` and trains nothing."""


KINDS = {str: "a text", dict: "an object", list: "a list"}
_NEEDED = object()


def _object(value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {str(value)[:80]!r}: an object is needed")
    if unknown := sorted(set(value) - set(known)):
        raise ValueError(f"{where} has no {str(unknown[0])[:80]!r}: known are {', '.join(known)}")
    return value


def _of(given: dict[str, Any], name: str, kind: type, where: str, default: Any = _NEEDED) -> Any:
    value = given.get(name, default)
    if not isinstance(value, kind):
        said = "it is missing" if value is _NEEDED else repr(value)[:80]
        raise ValueError(f"{where}.{name}: {said}: {KINDS[kind]} is needed")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the policy sees: a text, and pictures where the environment has them."""

    text: str
    images: tuple[bytes, ...] = ()  # PNG files
    facts: dict[str, Any] = field(default_factory=dict)  # for programs, as JSON: {"exit_code": 0, "cwd": "/work"}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; pictures as base64."""
        return {"text": self.text, "images": [base64.b64encode(i).decode() for i in self.images], "facts": self.facts}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Observation":
        """The reverse of `to_json`."""
        images = tuple(base64.b64decode(i) for i in value.get("images", ()))
        return cls(text=value["text"], images=images, facts=value.get("facts", {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool of the track."""

    name: str  # "bash", "python", "click", or a function that the task declares
    arguments: dict[str, Any]
    call_id: str = ""  # the id of the OpenAI tool call, where it came as one

    @classmethod
    def from_json(cls, value: Any, where: str) -> "Call":
        """The reverse of `asdict`.

        Raises:
            ValueError: names the field, from `where` on.
        """
        given = _object(value, where, ("name", "arguments", "call_id"))
        return cls(
            name=_of(given, "name", str, where), arguments=_of(given, "arguments", dict, where),
            call_id=_of(given, "call_id", str, where, ""),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one answer of the policy asks for: its calls, in order; or the fault that made it unreadable."""

    text: str  # the answer's own text: reasoning, and for some tracks the final answer
    calls: tuple[Call, ...] = ()
    fault: str | None = None  # why no call could be read, said so that the policy can mend it

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {"calls": [asdict(call) for call in self.calls]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Action":
        """The reverse of `to_json`.

        Raises:
            ValueError: names the field that is missing, unknown or of a wrong kind.
        """
        given = _object(value, "action", ("text", "calls", "fault"))
        calls = _of(given, "calls", list, "action", [])
        return cls(
            text=_of(given, "text", str, "action", ""),
            calls=tuple(Call.from_json(call, f"action.calls[{number}]") for number, call in enumerate(calls)),
            fault=None if given.get("fault") is None else _of(given, "fault", str, "action"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one action led to."""

    observation: Observation
    done: bool  # the episode is over: the policy said so, or nothing more can follow

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"observation": self.observation.to_json(), "done": self.done}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "StepResult":
        """The reverse of `to_json`."""
        return cls(observation=Observation.from_json(value["observation"]), done=value["done"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at in the end."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the task ended, by its checks. There is no outcome without a check: what can't be checked is a failure."""

    score: float  # -1 to 1: 2 * (share of checks passed) - 1, unless the track says otherwise
    checks: tuple[Check, ...]

    def __post_init__(self) -> None:
        if not -1 <= self.score <= 1:
            raise ValueError(f"outcome {self.score} is not within -1 and 1")

    @property
    def solved(self) -> bool:
        """Every check passed."""
        return all(check.passed for check in self.checks)

    @classmethod
    def of(cls, checks: tuple[Check, ...]) -> "Outcome":
        """2 * (share passed) - 1.

        Raises:
            EnvironmentFailed: without any check.
        """
        if not checks:
            raise EnvironmentFailed("the task's checks gave no result: nothing was evaluated")
        return cls(score=2 * sum(check.passed for check in checks) / len(checks) - 1, checks=checks)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"score": self.score, "checks": [asdict(check) for check in self.checks]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Outcome":
        """The reverse of `to_json`."""
        return cls(score=value["score"], checks=tuple(Check(**check) for check in value["checks"]))


class Environment(Protocol):
    """One episode at a time: `reset`, then `step` until done, `evaluate` once, `close` always.

    Every method may raise `EnvironmentFailed`, or `TaskError` from `reset` for a task that this environment can't run.
    """

    async def reset(self, task: Task) -> Observation:
        """Begin the task from a clean state; what the policy sees first (the instruction is the prompt's matter)."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Carry out one action. A faulty action changes nothing and its observation says why."""
        ...

    async def evaluate(self) -> Outcome:
        """Run the task's checks. What the policy left running is ended first."""
        ...

    async def close(self) -> None:
        """End every process and remove every file of the episode. May be called twice, and at any time."""
        ...
