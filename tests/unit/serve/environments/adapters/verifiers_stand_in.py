"""A small library with the names of `verifiers.v1` that the adapter uses: `VerifiersStandIn`.

It stands in for the real one, which can't be installed beside us; `test_verifiers_library.py` has that.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any


class Loose(SimpleNamespace):
    """A message, a node, a part of a trace: whatever it is given."""


class UserMessage(Loose):
    role = "user"


class SystemMessage(Loose):
    role = "system"


class AssistantMessage(Loose):
    role = "assistant"


class ToolMessage(Loose):
    role = "tool"


class JudgeConfig:
    """A judge of a task."""


class Agents:
    """Seats by the names that a config declares."""

    def __init__(self, config: Any, make: Any) -> None:
        for name in config.seats:
            setattr(self, name, make(name, None))


@dataclass
class Reward:
    score: float
    weight: float = 1.0


@dataclass
class Trace:
    task: Any
    agent: Any
    state: Any
    nodes: list[Any] = field(default_factory=list)
    rewards: dict[str, Reward | None] = field(default_factory=dict)
    stop_condition: str | None = None
    ok: bool = False

    @property
    def reward(self) -> float:
        return sum(one.score * one.weight for one in self.rewards.values() if one)

    @property
    def last_reply(self) -> str:
        said = [node.message.content for node in self.nodes if node.sampled]
        return said[-1] if said else ""

    def record_reward(self, name: str, score: float, weight: float = 1.0) -> None:
        self.rewards[name] = Reward(score, weight)

    def stop(self, condition: str) -> None:
        self.stop_condition = condition


@dataclass
class Data:
    prompt: Any = None
    system_prompt: str | None = None
    answer: str = ""
    image: str | None = None
    workdir: str | None = None
    agent_user: str | None = None
    skills: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def model_validate(cls, row: dict[str, Any]) -> "Data":
        return cls(**row)


class Task:
    NEEDS_CONTAINER = False
    key = hash = "1"

    def __init__(self, data: Data, config: Any) -> None:
        self.data, self.config = data, config

    @classmethod
    def data_type(cls) -> type[Data]:
        return Data

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []

    async def setup(self, trace: Any, runtime: Any) -> None: ...

    async def finalize(self, trace: Any, runtime: Any) -> None: ...

    def correct(self, trace: Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    def hooks(self, kind: str) -> list[Any]:
        return [self.correct] if kind == "reward" else []

    async def score(self, trace: Trace, runtime: Any = None) -> None:
        for reward in self.hooks("reward"):
            trace.record_reward(reward.__name__, reward(trace))


class Env:
    """What an environment inherits."""

    def __init__(self, taskset: Any, *seats: str) -> None:
        self.taskset, self.config = taskset, SimpleNamespace(seats=seats, env_id="stand-in")

    async def setup(self, agents: Any) -> None: ...

    async def finalize(self, task: Any, episode: Any) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Taskset:
    bounded = True

    def __init__(self, *rows: Data, kind: type[Task] = Task, judges: tuple[Any, ...] = ()) -> None:
        self.rows, self.kind = rows, kind
        self.config = SimpleNamespace(task=SimpleNamespace(judges=judges))

    def __iter__(self) -> Any:
        return (self.kind(row, self.config.task) for row in self.rows)

    def task_type(self) -> type[Task]:
        return self.kind

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []


class VerifiersStandIn:
    """As `VerifiersLibrary`, without the library."""

    v1 = SimpleNamespace(
        Trace=Trace, Task=Task, Env=Env, Agents=Agents, JudgeConfig=JudgeConfig, UserMessage=UserMessage,
        SystemMessage=SystemMessage, AssistantMessage=AssistantMessage, ToolMessage=ToolMessage, AgentConfig=Loose,
        AgentInfo=Loose, TraceTask=Loose, MessageNode=Loose, ToolCall=Loose, Segment=Loose, Episode=Loose,
        EnvInfo=Loose,
    )  # fmt: skip

    def state_type(self, kind: type) -> type:
        return getattr(kind, "STATE", dict)

    @asynccontextmanager
    async def tool_client(self, toolset: Any) -> AsyncIterator[Any]:
        yield toolset
