"""Episodes on real environments: formats, limits, what was seen, and how failures end."""

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from serve.environments.catalog import find_task, track
from serve.environments.episode import EpisodeSettings, PolicyAnswer, PolicyFailed, PolicyRequest, run_episode
from serve.environments.policies import ScriptedPolicy
from serve.environments.prompts import read_answer, write_answer
from serve.environments.protocol import TRACKS, Action
from serve.environments.runs import local
from storage.arrow import from_row, schema, to_row
from storage.records import Episode
from tests.unit.serve.environments.stand_in import EnvironmentStandIn, task


def easy(name: str = "terminal"):
    return min(track(name).load(), key=lambda task: (task.difficulty, -len(task.expert), task.task_id))


class Says:
    """A policy that gives these answers, in order."""

    def __init__(self, *answers: dict) -> None:
        self.answers = list(answers)
        self.asked: list[PolicyRequest] = []

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        self.asked.append(request)
        if not self.answers:
            raise PolicyFailed("the engine is down")
        return PolicyAnswer(message=self.answers.pop(0))


@pytest.mark.parametrize("form", ["tools", "plain"])
async def test_an_expert_solves_its_task_in_both_formats_and_all_is_recorded(form: str) -> None:
    chosen = max(track("terminal").load(), key=lambda task: len(task.expert))
    async with local("terminal") as environment:
        run = await run_episode(
            environment, chosen, ScriptedPolicy(chosen.expert, form), episode_id="e1", group_id="g",
            settings=EpisodeSettings(form=form),
        )  # fmt: skip
    assert (run.episode.status, run.episode.outcome) == ("done", 1.0)
    assert len(run.episode.steps) == len(chosen.expert)
    for number, step in enumerate(run.steps):  # what was seen: everything before, and no more
        shown = len(track("terminal").EXAMPLE_PLAIN) // 2 if form == "plain" else 0
        assert sum(message["role"] == "assistant" for message in step.messages) == number + shown
        assert run.episode.steps[number].messages == step.messages
    table = pa.Table.from_pylist([to_row(run.episode)], schema(Episode))
    back = from_row(Episode, table.to_pylist()[0])
    assert back.steps == run.episode.steps and back.outcome == 1.0


async def test_steps_used_up_is_truncated_and_evaluated() -> None:
    chosen = replace(easy(), limits=replace(easy().limits, steps=1))
    looks = write_answer(track("terminal"), track("terminal").expert_action("ls", None), "tools")
    async with local("terminal") as environment:
        run = await run_episode(environment, chosen, Says(looks, looks), episode_id="e")
    assert (run.episode.status, len(run.steps)) == ("truncated", 1)
    assert run.outcome is not None and run.outcome.score < 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"name": "bsh", "arguments": "{}"}, "There is no tool 'bsh'"),
        ({"name": "bash", "arguments": "{no json"}, "not JSON"),
        ({"name": "bash", "arguments": "[1]"}, "JSON object"),
        ({"name": None, "arguments": None}, "no name of a tool; there are bash, done"),
        ({}, "no name of a tool"),
    ],
)
async def test_a_malformed_call_is_an_observation_that_names_the_fault(call: dict, said: str) -> None:
    answer = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
    policy = Says(answer)
    async with local("terminal") as environment:
        run = await run_episode(environment, easy(), policy, episode_id="e")
    assert said in run.steps[0].after.text
    assert run.episode.status == "error" and run.episode.reason == "policy: the engine is down"
    assert run.episode.outcome is None


@pytest.mark.parametrize(
    ("text", "reason"), [("fail", "environment: the sandbox died"), ("hang", "stuck")], ids=["failed", "stuck"]
)
async def test_a_failing_environment_is_an_error_with_its_reason(text: str, reason: str, monkeypatch) -> None:
    monkeypatch.setattr("serve.environments.episode.LATE_S", 0.2)
    given = task()
    given = replace(given, limits=replace(given.limits, episode_s=0.2))
    policy = Says({"role": "assistant", "content": text})
    run = await run_episode(EnvironmentStandIn(), given, policy, episode_id="e")
    assert run.episode.status == "error" and reason in run.episode.reason
    assert run.episode.outcome is None and run.outcome is None


@pytest.mark.parametrize("name", ["terminal", "tool_call", "swe"])  # gui's entries name elements of an open page
def test_every_expert_step_reads_back_the_same_in_both_formats(name: str) -> None:
    module = track(name)
    for one in module.load():
        for entry in (*one.expert, *one.wrong):
            action = module.expert_action(entry, None)
            for form in ("tools", "plain"):
                back = read_answer(module, one, write_answer(module, action, form), form)
                assert back.fault is None, (one.task_id, entry, back.fault)
                assert [c.name for c in back.calls] == [c.name for c in action.calls]
                if form == "tools":  # in a plain text, an answer that is JSON is its text
                    assert [c.arguments for c in back.calls] == [c.arguments for c in action.calls]


@pytest.mark.parametrize("name", TRACKS)
def test_tools_are_openai_declarations(name: str) -> None:
    module = track(name)
    for one in module.load():
        tools = module.tools(one)
        assert all(tool["type"] == "function" and tool["function"]["parameters"]["type"] == "object" for tool in tools)
        assert len({tool["function"]["name"] for tool in tools}) == len(tools)


def test_an_answer_without_calls_is_the_tracks_matter() -> None:
    action = read_answer(track("terminal"), find_task("terminal", easy().task_id), {"content": "hm"}, "tools")
    assert action == Action(text="hm")


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": [{"type": "text", "text": "hm"}, {"type": "image"}, 5]},
        {"role": "assistant", "tool_calls": ["x"]},
        {"role": "assistant", "tool_calls": [{"function": "bash"}]},
        {"role": "assistant", "tool_calls": {"function": "bash"}},
        {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": "[" * 200_000}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "true"}'}}]},
        {"role": "assistant", "content": "half a pair: \ud83d"},
        {},
    ],
)
@pytest.mark.parametrize("form", ["tools", "plain"])
async def test_whatever_a_policy_answers_the_episode_goes_on_and_can_be_stored(answer: dict, form: str) -> None:
    async with local("terminal") as environment:
        settings = EpisodeSettings(form=form)
        policy = Says(answer, answer)
        run = await run_episode(environment, replace(easy(), limits=replace(easy().limits, steps=2)), policy,
                                episode_id="odd", settings=settings)  # fmt: skip
    assert (run.episode.status, len(run.steps)) == ("truncated", 2)
    pa.Table.from_pylist([to_row(run.episode)], schema=schema(Episode))


class Raises:
    """A policy that does this."""

    def __init__(self, what: object) -> None:
        self.what = what

    async def act(self, request: PolicyRequest) -> PolicyAnswer:
        if isinstance(self.what, BaseException):
            raise self.what
        if self.what == "sleeps":
            await asyncio.sleep(60)
        return self.what  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (RuntimeError("broken"), "policy: it raised RuntimeError: broken"),
        (TimeoutError("the engine"), "policy: it raised TimeoutError: the engine"),
        (None, "policy: it gave None"),
        (PolicyAnswer(message=None), "a PolicyAnswer with an assistant message is needed"),  # type: ignore[arg-type]
    ],
)
async def test_a_policy_that_fails_ends_its_own_episode_with_its_reason(what: object, said: str) -> None:
    run = await run_episode(EnvironmentStandIn(), task(), Raises(what), episode_id="e")
    assert run.episode.status == "error" and said in run.episode.reason


async def test_a_policy_that_outlasts_the_episode_is_truncated_and_evaluated() -> None:
    short = replace(task(), limits=replace(task().limits, episode_s=0.2))
    run = await run_episode(EnvironmentStandIn(), short, Raises("sleeps"), episode_id="e")
    assert run.episode.status == "truncated" and run.outcome is not None


async def test_an_environment_that_raises_anything_is_an_error_of_its_own_episode() -> None:
    environment = EnvironmentStandIn()
    run = await run_episode(environment, task(), Says({"role": "assistant", "content": "raise"}), episode_id="e")
    assert run.episode.status == "error" and "RuntimeError: a fault of ours" in run.episode.reason
