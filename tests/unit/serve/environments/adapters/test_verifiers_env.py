"""The adapter of `verifiers` with a stand-in for the library; the real one is in `test_verifiers_library.py`."""

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from serve.environments.adapters import verifiers_env
from serve.environments.adapters.verifiers_env import VerifiersEnvironment
from serve.environments.protocol import Action, Call, EnvironmentFailed
from serve.environments.tasks import TaskError
from tests.unit.serve.environments.adapters import verifiers_stand_in as vf
from tests.unit.serve.environments.adapters.verifiers_stand_in import VerifiersStandIn

SUM = vf.Data(prompt="What is 1 + 2?", system_prompt="Only the number.", answer="3")


def environment_of(source: Any, **options: Any) -> VerifiersEnvironment:
    return VerifiersEnvironment(source, library=VerifiersStandIn(), **options)


class Guess(vf.Env):
    """Asks until the answer is right; notes the thread it ran in."""

    async def run(self, task: Any, agents: Any) -> None:
        self.thread = threading.get_ident()
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn("A word?")
            while not segment.terminated and segment.messages[-1].content != task.data.answer:
                segment = await interaction.turn([{"role": "user", "content": "Another?"}])
        interaction.trace.record_reward("turns", float(not segment.terminated))


async def test_one_answer_is_scored_by_the_rows_rewards() -> None:
    source = vf.Taskset(SUM, vf.Data(prompt="And 2 + 2?", answer="4"))
    first, second = verifiers_env.tasks(source)
    assert first.instruction == "Only the number.\n\nWhat is 1 + 2?" and second.instruction == "And 2 + 2?"
    environment = environment_of(source)
    for task, answer, score in ((first, "3", 1.0), (first, "4", -1.0), (second, "4", 1.0)):
        assert (await environment.reset(task)).text == ""
        result = await environment.step(Action(text=answer))
        assert result.done
        outcome = await environment.evaluate()
        assert outcome.score == score and outcome.solved == (score == 1)
        assert (await environment.step(Action(text="5"))).done
        assert (await environment.evaluate()).score == score, "an answer that came too late changes nothing"
    await environment.close()


async def test_an_environment_asks_turn_by_turn_in_a_thread_of_its_own() -> None:
    source = Guess(vf.Taskset(vf.Data(answer="moss")), "player")
    environment = environment_of(source, reward_range=(0, 2))
    task = verifiers_env.tasks(source)[0]
    assert (await environment.reset(task)).text == "A word?"
    assert source.thread != threading.get_ident()
    assert (await environment.step(Action(text="lake"))).observation.text == "Another?"
    assert (await environment.step(Action(text="", fault="Not JSON."))).observation.text == "Not JSON."
    assert (await environment.step(Action(text="moss"))).done
    assert (await environment.evaluate()).score == 1.0
    await environment.reset(task)
    await environment.step(Action(text="lake"))
    assert (await environment.evaluate()).score == -1.0, "an agent that says no more has not found it"
    await environment.close()


class Counter:
    """Tools with a state of their own."""

    STATE = dict
    server_name = "counter"
    config = SimpleNamespace(url=None, runtime=SimpleNamespace(type="subprocess"))

    async def setup(self) -> None: ...

    async def setup_task(self, data: Any) -> None:
        self.state["from"] = int(data.answer)

    async def list_tools(self) -> Any:
        tool = SimpleNamespace(name="add", description="Add.", input_schema={"type": "object"})
        return SimpleNamespace(tools=[tool])

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.state["from"] += arguments["by"]
        return SimpleNamespace(content=[SimpleNamespace(type="text", text=str(self.state["from"]))])


class Counting(vf.Task):
    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [Counter()]

    def correct(self, trace: vf.Trace) -> float:
        return float(trace.state["from"] == 8 and [node.message.role for node in trace.nodes][-3:] == [
            "tool", "tool", "assistant",
        ])  # fmt: skip


async def test_tools_work_on_the_state_that_the_rewards_read() -> None:
    source = vf.Taskset(vf.Data(prompt="Make it 8.", answer="1"), kind=Counting)
    environment = environment_of(source)
    facts = (await environment.reset(verifiers_env.tasks(source)[0])).facts
    assert [tool["function"]["name"] for tool in facts["tools"]] == ["counter_add"]
    strange = await environment.step(Action(text="", calls=(Call(name="add", arguments={"by": 9}),)))
    assert strange.observation.text == "There is no tool 'add': there are counter_add."
    calls = tuple(Call(name="counter_add", arguments={"by": by}) for by in (3, 4))
    result = await environment.step(Action(text="", calls=calls))
    assert result.observation.text == "4\n\n8" and not result.done
    assert (await environment.step(Action(text="It is 8."))).done
    assert (await environment.evaluate()).score == 1.0
    await environment.close()


def needing(**changes: Any) -> Callable[[], Any]:
    return lambda: vf.Taskset(vf.Data(**{"prompt": "?"} | changes))


def with_kind(**members: Any) -> Callable[[], Any]:
    return lambda: vf.Taskset(SUM, kind=type("Some", (vf.Task,), members))


async def looks(self: Any, trace: Any, runtime: Any) -> float:
    return 1.0


PICTURE = SimpleNamespace(role="user", content=[SimpleNamespace(type="image_url")])
BEGUN = [SimpleNamespace(role=role, content="x") for role in ("user", "assistant", "user")]
STOPS = with_kind(hooks=lambda self, kind: [looks] if kind == "stop" else [])
NEEDS_RUNTIME = with_kind(hooks=lambda self, kind: [looks] if kind == "reward" else [])
FAR = SimpleNamespace(config=SimpleNamespace(url=None, runtime=SimpleNamespace(type="docker")))


@pytest.mark.parametrize(("make", "reason"), [
    (needing(image="debian"), "container"), (needing(artifacts=("a",)), "container"),
    (lambda: vf.Taskset(SUM, judges=("llm",)), "judge needs a model"), (NEEDS_RUNTIME, "reward looks takes a runtime"),
    (with_kind(setup=looks), "its setup takes a runtime"), (with_kind(finalize=looks), "its finalize takes a runtime"),
    (STOPS, "@stop"), (with_kind(toolsets=lambda *_: [FAR]), "run elsewhere"),
    (lambda: Guess(vf.Taskset(SUM)), "has 0 agents"),
    (lambda: Guess(vf.Taskset(SUM), "one", "two"), "has 2 agents"),
    (lambda: type("Up", (Guess,), {"start": looks})(vf.Taskset(SUM), "player"), r"start\(\)"),
])  # fmt: skip
async def test_what_does_not_map_is_refused_with_words(make: Callable[[], Any], reason: str) -> None:
    source = make()
    environment = environment_of(source)
    with pytest.raises(TaskError, match=reason):
        await environment.reset(verifiers_env.tasks(source)[0])
    await environment.close()


@pytest.mark.parametrize(("prompt", "reason"), [([PICTURE], "image_url"), (BEGUN, "user, assistant, user")])
def test_prompts_that_are_no_single_text_are_refused(prompt: list[Any], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        verifiers_env.tasks(vf.Taskset(vf.Data(prompt=prompt)))


def test_an_endless_taskset_needs_a_count() -> None:
    source = vf.Taskset(*[SUM] * 3)
    source.bounded = False
    with pytest.raises(ValueError, match="count"):
        verifiers_env.tasks(source)
    assert [task.task_id for task in verifiers_env.tasks(source, count=2)] == ["Taskset-0", "Taskset-1"]


def test_score_ranges_are_checked() -> None:
    with pytest.raises(ValueError, match="reward_range"):
        environment_of(vf.Taskset(), reward_range=(1, 1))


async def silent(self: Any, trace: Any, runtime: Any = None) -> None: ...


async def unscored(self: Any, trace: Any, runtime: Any = None) -> None:
    trace.rewards["correct"] = None


@pytest.mark.parametrize(("members", "reason"), [
    ({"score": silent}, "did not record any reward"), ({"score": unscored}, "did not record correct reward"),
    ({"correct": lambda self, trace: 1 / 0}, "ZeroDivisionError"),
])  # fmt: skip
async def test_no_reward_is_no_score(members: dict[str, Any], reason: str) -> None:
    source = vf.Taskset(SUM, kind=type("Some", (vf.Task,), {"hooks": lambda self, _: []} | members))
    if "correct" in members:
        source.kind.hooks = lambda self, kind: [self.correct] if kind == "reward" else []
        members["correct"].__name__ = "correct"
    environment = environment_of(source)
    await environment.reset(verifiers_env.tasks(source)[0])
    with pytest.raises(EnvironmentFailed, match=reason):
        await environment.step(Action(text="3"))
        await environment.evaluate()
    await environment.close()


def test_without_the_library_one_is_told_where_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    with pytest.raises(ValueError, match="virtual environment of its own"):
        VerifiersEnvironment(vf.Taskset())
