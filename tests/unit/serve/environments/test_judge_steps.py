"""What a step judge is given of a real episode, and what the episode looks like afterwards."""

import math
from dataclasses import replace

from judge.steps import RenderLimits, StepInput, StepJudgeSettings, make_step_judge, render
from serve.environments.catalog import track
from serve.environments.episode import EpisodeRun, run_episode
from serve.environments.gui.browser import shared
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


async def test_what_decides_by_itself_does_so_on_real_steps() -> None:
    task = next(task for task in track("tool_call").load() if task.task_id == "arith-run-product")
    async with local("tool_call") as environment:
        run = await run_episode(environment, task, ScriptedPolicy(task.expert), episode_id="e")
    judged = await judge_run(run, make_step_judge(StepJudgeSettings(judge="verifiable")))
    assert judged.run.episode.process_rewards == (1.0,) * len(run.steps) and len(run.steps) > 1
    assert "the answer is right" in judged.verdicts[-1].evaluative[0].text


async def test_a_gui_step_has_its_trees_before_and_after() -> None:
    run = await played("gui")
    first = step_inputs(run)[0]
    assert first.before is not None and first.after is not None
    assert "[" in first.before.tree and first.before.tree != first.after.tree and first.after.image
    await shared().close()


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
