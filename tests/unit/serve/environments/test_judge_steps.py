"""What a step judge is given of a real episode, and what the episode looks like afterwards."""

import math
from dataclasses import replace

from judge.steps import RenderLimits, StepInput, StepJudgeSettings, make_step_judge, render
from serve.environments.catalog import track
from serve.environments.episode import EpisodeRun, run_episode
from serve.environments.judge_steps import judge_run, step_inputs
from serve.environments.policies import ScriptedPolicy
from serve.environments.runs import local
from storage.records import Verdict


async def played(name: str = "terminal", entries: tuple = ()) -> EpisodeRun:
    task = next(task for task in track(name).load() if len(task.expert) >= 3)
    async with local(name) as environment:
        return await run_episode(environment, task, ScriptedPolicy(entries or task.expert), episode_id="e")


async def test_each_step_has_its_history_its_result_and_its_facts() -> None:
    run = await played(entries=("ls", "nosuchcommand", "nosuchcommand", "done"))
    steps = step_inputs(run)
    assert [len(step.history) for step in steps] == [0, 1, 2, 3]
    assert steps[1].facts["exit_code"] == 127
    assert '"command": "ls"' in steps[2].history[0][0]
    assert steps[2].result == run.steps[2].after.text
    prompt = render(steps[2], images=False, limits=RenderLimits())
    assert run.task.instruction.split("\n")[0] in prompt[1]["content"]


async def test_the_rules_judge_marks_what_failed_and_the_episode_holds_the_means() -> None:
    run = await played(entries=("ls", "nosuchcommand", "nosuchcommand", "done"))
    judged = await judge_run(run, make_step_judge(StepJudgeSettings(judge="rules")))
    rewards = judged.run.episode.process_rewards
    assert rewards[1] == rewards[2] == -1
    assert judged.rewards.rewards[1] == run.episode.outcome - 1
    assert [step.reward for step in judged.run.episode.steps] == [None if math.isnan(r) else r for r in rewards]


class Fails:
    """A judge whose engine is down."""

    name = "fails/1"

    async def judge(self, step: StepInput) -> Verdict:
        verdict = await make_step_judge(StepJudgeSettings(judge="rules")).judge(step)
        return replace(verdict, evaluative=(), reward=None, error="the engine is down")


async def test_a_judge_that_fails_is_never_a_zero() -> None:
    judged = await judge_run(await played(), Fails())
    assert all(math.isnan(value) for value in judged.run.episode.process_rewards)
    assert {one.why for one in judged.rewards.unjudged} == {"the engine is down"}
