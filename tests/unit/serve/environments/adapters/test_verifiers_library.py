"""The real `verifiers`: tasksets, tools with state and environments that ask turn by turn, through our protocol."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from serve.environments.adapters.verifiers_env import VerifiersEnvironment, tasks
from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.tasks import Limits, Task, TaskError


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.8)
    async def correct(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise ZeroDivisionError("broken reward")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.2)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 4)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SumTask]:
        for a in (1, 2, 3):
            prompt = f"What is {a} + 2?"
            yield SumTask(SumData(prompt=prompt, system_prompt="Only the number.", answer=str(a + 2)), self.config.task)


class Basket(vf.State):
    held: list[str] = []  # noqa: RUF012 - a pydantic field


class BasketTools(vf.Toolset[vf.ToolsetConfig, Basket]):
    TOOL_PREFIX = "basket"

    async def setup_task(self, task: Any) -> None:
        self.allowed = task.allowed

    @vf.tool
    async def put(self, item: str, count: int = 1) -> str:
        """Put something in."""
        if item not in self.allowed:
            raise ValueError(f"{item} is not allowed")
        self.state.held.extend([item] * count)
        return f"{len(self.state.held)} in the basket"


class BasketData(vf.TaskData):
    allowed: list[str]


class BasketTask(vf.Task[BasketData, Basket]):
    @vf.reward
    async def two_apples(self, trace: vf.Trace) -> float:
        return float(trace.state.held == ["apple", "apple"])

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BasketTools(vf.ToolsetConfig())]


class Baskets(vf.Taskset[BasketTask, vf.TasksetConfig]):
    def load(self) -> Iterator[BasketTask]:
        yield BasketTask(BasketData(prompt="Put two apples in.", allowed=["apple", "pear"]), self.config.task)


GUESSING = """
import verifiers.v1 as vf

class GuessData(vf.TaskData):
    number: int

class GuessTask(vf.Task[GuessData]):
    pass

class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for number in (3, 8):
            yield GuessTask(GuessData(number=number), self.config.task)

class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        won, said = 0.0, "Guess my number from 1 to 10."
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn(said)
            while not segment.terminated:
                guess = int(segment.last_reply)
                if guess == task.data.number:
                    won = 1.0
                    break
                segment = await interaction.turn("higher" if guess < task.data.number else "lower")
        interaction.trace.record_reward("won", won)

    async def finalize(self, task, episode):
        episode.traces[0].record_reward("quick", float(episode.num_turns <= 3), 0.5)

class SecondConfig(GuessConfig):
    second: vf.AgentConfig = vf.AgentConfig()

__all__ = ["GuessTaskset", "GuessEnv"]
"""


@pytest.fixture
def guessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "guess_numbers.py").write_text(GUESSING)
    monkeypatch.syspath_prepend(tmp_path)
    return vf.load_environment(vf.resolve_env_config({"taskset": {"id": "guess-numbers"}}))


def say(text: str) -> Action:
    return Action(text=text)


def put(**arguments: Any) -> Action:
    return Action(text="", calls=(Call(name="basket_put", arguments=arguments),))


@pytest.mark.parametrize(("answer", "score", "detail"), [
    ("5", 1.0, "correct 1 x 0.8, short 1 x 0.2"), ("4", -0.6, "correct 0 x 0.8, short 1 x 0.2"),
    ("no idea", -1.0, "correct 0 x 0.8, short 0 x 0.2"),
])  # fmt: skip
async def test_a_row_is_a_task_and_its_weighted_rewards_are_the_outcome(answer: str, score: float, detail: str) -> None:
    source = Sums(vf.TasksetConfig())
    task = Task.from_json(tasks(source)[2].to_json() | {"limits": {}})
    assert task.instruction == "Only the number.\n\nWhat is 3 + 2?" and task.task_id == "Sums-2"
    assert task.payload["row"]["answer"] == "5"
    environment = VerifiersEnvironment(source)
    observation = await environment.reset(task)
    assert observation.text == "" and observation.facts == {"tools": []}
    assert (await environment.step(say(" "))).observation.text == "The answer is empty."
    assert "There is no tool" in (await environment.step(put(item="x"))).observation.text
    assert (await environment.step(say(answer))).done
    outcome = await environment.evaluate()
    assert (
        outcome.score == pytest.approx(score) and outcome.solved == (score == 1) and outcome.checks[0].detail == detail
    )
    await environment.close()


async def test_a_reward_that_raises_is_a_failure() -> None:
    source = Sums(vf.TasksetConfig())
    environment = VerifiersEnvironment(source)
    await environment.reset(tasks(source)[0])
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError: broken reward"):
        await environment.step(say("break"))
    with pytest.raises(EnvironmentFailed, match="broken reward"):
        await environment.evaluate()
    await environment.close()


async def test_an_episode_that_is_cut_short_is_scored_as_it_stands() -> None:
    source = Sums(vf.TasksetConfig())
    environment = VerifiersEnvironment(source, reward_range=(-1, 1))
    await environment.reset(tasks(source)[0])
    outcome = await environment.evaluate()
    assert outcome.score == pytest.approx(0.2) and not outcome.solved, "no reply is short"
    assert (await environment.step(say("3"))).done
    await environment.close()


async def test_tools_run_in_this_process_and_share_their_state_with_the_rewards() -> None:
    source = Baskets(vf.TasksetConfig())
    environment = VerifiersEnvironment(source)
    task = tasks(source)[0]
    for count, score in ((2, 1.0), (3, -1.0)):  # the second episode starts with an empty basket
        tool = (await environment.reset(task)).facts["tools"][0]["function"]
        assert tool["name"] == "basket_put" and tool["description"] == "Put something in."
        assert tool["parameters"]["properties"]["count"]["type"] == "integer"
        assert "plum is not allowed" in (await environment.step(put(item="plum"))).observation.text
        assert "rror" in (await environment.step(put(item="apple", count="many"))).observation.text
        result = await environment.step(put(item="apple", count=count))
        assert not result.done and result.observation.text == f"{count} in the basket"
        assert (await environment.step(say("Done."))).done
        assert (await environment.evaluate()).score == score
    await environment.close()


async def test_an_environment_that_asks_turn_by_turn_is_driven_from_outside(guessing: Any) -> None:
    environment = VerifiersEnvironment(guessing, reward_range=(0, 1.5))
    task = tasks(guessing)[1]
    assert (await environment.reset(task)).text == "Guess my number from 1 to 10."
    assert (await environment.step(say("5"))).observation.text == "higher"
    assert (await environment.step(say("9"))).observation.text == "lower"
    assert (await environment.step(say("8"))).done
    outcome = await environment.evaluate()
    assert outcome.score == 1.0 and outcome.checks[0].detail == "won 1 x 1, quick 1 x 0.5"

    await environment.reset(task)
    await environment.step(say("5"))
    assert (await environment.evaluate()).score == pytest.approx(2 * 0.5 / 1.5 - 1), "quick, and not won"

    await environment.reset(task)
    with pytest.raises(EnvironmentFailed, match="invalid literal"):
        await environment.step(say("eight"))
    await environment.close()


async def test_a_sum_outside_the_range_is_a_failure_that_says_so(guessing: Any) -> None:
    environment = VerifiersEnvironment(guessing)
    await environment.reset(tasks(guessing)[0])
    await environment.step(say("3"))
    with pytest.raises(EnvironmentFailed, match=r"1\.5 .*outside \(0, 1\): set reward_range"):
        await environment.evaluate()
    await environment.close()


async def test_threads_end_also_in_the_middle_of_an_episode(guessing: Any) -> None:
    task = tasks(guessing, skill="midway")[0]

    def running() -> int:
        return sum(thread.name == "verifiers-midway-0" for thread in threading.enumerate())

    environment = VerifiersEnvironment(guessing)
    for _ in range(3):
        await environment.reset(task)
    assert running() >= 1
    await environment.close()
    await environment.close()
    for _ in range(500):
        if not running():
            break
        await asyncio.sleep(0.01)
    assert running() == 0


class Slow(Sums):
    def load(self) -> Iterator[SumTask]:
        for one in super().load():
            yield SlowTask(one.data, self.config.task)

    @classmethod
    def task_type(cls) -> type:
        return SlowTask


class SlowTask(SumTask):
    async def setup(self, trace: vf.Trace) -> None:
        await asyncio.sleep(20)


async def test_a_task_that_takes_too_long_has_failed() -> None:
    source = Slow(vf.TasksetConfig())
    environment = VerifiersEnvironment(source)
    with pytest.raises(EnvironmentFailed, match=r"did not return within 0\.2 s"):
        await environment.reset(tasks(source, limits=Limits(step_s=0.2))[0])
    await environment.close()


class RuntimeReward(SumTask):
    @vf.reward
    async def looked(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0


class RuntimeSetup(SumTask):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("a", b"")


class Stops(SumTask):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return True


class Container(SumTask):
    NEEDS_CONTAINER = True


class JudgedConfig(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig()


class Judged(vf.Task[SumData, vf.State, JudgedConfig]):
    pass


class Elsewhere(SumTask):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BasketTools(vf.ToolsetConfig(url="http://127.0.0.1:1/mcp"))]


class OtherState(SumTask):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BasketTools(vf.ToolsetConfig())]


@pytest.mark.parametrize(("kind", "reason"), [
    (RuntimeReward, "its reward looked takes a runtime"), (RuntimeSetup, "its setup takes a runtime"),
    (Stops, "@stop"), (Container, "container"), (Judged, "judge"), (Elsewhere, "run elsewhere"),
    (OtherState, "keep a Basket, and the task a State"),
])  # fmt: skip
async def test_what_can_not_be_driven_is_refused_with_the_reason(kind: type, reason: str) -> None:
    class Some(vf.Taskset[kind, vf.TasksetConfig]):
        def load(self) -> Iterator[Any]:
            yield kind(SumData(prompt="?", answer="!"))

    config = vf.TasksetConfig(task=kind.config_type()())
    environment = VerifiersEnvironment(Some(config))
    with pytest.raises(TaskError, match=reason):
        await environment.reset(tasks(Some(config))[0])
    await environment.close()


async def test_several_agents_are_refused(guessing: Any) -> None:
    import guess_numbers

    guessing.config = guess_numbers.SecondConfig.model_validate(guessing.config.model_dump(exclude={"player"}))
    environment = VerifiersEnvironment(guessing)
    with pytest.raises(TaskError, match="has 2 agents"):
        await environment.reset(tasks(guessing)[0])
    await environment.close()


async def test_best_of_n_runs_its_agent_more_than_once_and_is_refused(guessing: Any) -> None:
    async def twice(self: Any, task: Any, agents: Any) -> None:
        for _ in range(2):
            async with agents.player.interaction(task) as interaction:
                await interaction.turn("Again?")

    guessing.run = twice.__get__(guessing)
    environment = VerifiersEnvironment(guessing)
    await environment.reset(tasks(guessing)[0])
    with pytest.raises(EnvironmentFailed, match="more than once"):
        await environment.step(say("1"))
    await environment.close()


async def test_a_row_of_another_taskset_is_refused() -> None:
    environment = VerifiersEnvironment(Baskets(vf.TasksetConfig()))
    with pytest.raises(TaskError, match="no row of Baskets"):
        await environment.reset(tasks(Sums(vf.TasksetConfig()))[0])
    await environment.close()
