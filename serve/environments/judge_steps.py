"""The steps of an episode as a step judge takes them, and the episode with what the judge said.

What it does: `step_inputs` builds what the judge is given for each step; `judge_run` asks it, some steps at once, and
puts the mean votes into the `Episode` (NaN where nobody voted: a judge that failed is never a 0).
What it leaves out: the judges and their prompts (`judge/steps/`), what becomes of a reward (`train/advantages.py`).
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from judge.steps import Screen, StepInput, StepJudge, StepRewards, step_rewards
from serve.environments.episode import EpisodeRun, told
from serve.environments.protocol import Observation
from storage.records import Verdict

BULKY = ("elements", "tree", "tree_diff")  # facts that the screens hold already


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """An episode, judged step by step."""

    run: EpisodeRun  # its episode holds the mean votes
    verdicts: tuple[Verdict, ...]
    rewards: StepRewards  # R = outcome + mean vote; which steps nobody judged, and why


def step_inputs(run: EpisodeRun) -> list[StepInput]:
    """What the judge is given for each step: task, what came before, the step, what it led to."""
    history: list[tuple[str, str]] = []
    inputs = []
    for index, step in enumerate(run.steps):
        facts = {name: value for name, value in step.after.facts.items() if name not in BULKY}
        if step.action.fault is not None:
            facts.setdefault("fault", step.action.fault)
        if run.task.track == "tool_call" and run.outcome is not None and index == len(run.steps) - 1:
            facts["correct"] = run.outcome.score == 1  # the episode ends with the final answer
        gui = run.task.track == "gui"
        made = StepInput(
            track=run.task.track, instruction=run.task.instruction, history=tuple(history), index=index,
            action=told(step.action), result=step.after.text, exchange_id=step.exchange_id, facts=facts,
            before=_screen(step.before) if gui else None, after=_screen(step.after) if gui else None,
        )  # fmt: skip
        inputs.append(made)
        history.append((told(step.action), step.after.text))
    return inputs


def _screen(seen: Observation) -> Screen:
    return Screen(tree="\n".join(seen.facts.get("tree", ())), image=seen.images[-1] if seen.images else None)


async def judge_run(run: EpisodeRun, judge: StepJudge, at_once: int = 4) -> JudgedRun:
    """Judge every step. A step without a valid vote is named in `rewards.unjudged`.

    Args:
        run: the episode; one that ended as an error is judged too, and gets no rewards.
        judge: `judge.steps.make_step_judge`.
        at_once: requests at a time.
    """
    room = asyncio.Semaphore(at_once)

    async def one(step: StepInput) -> Verdict:
        async with room:
            return await judge.judge(step)

    verdicts = await asyncio.gather(*(one(step) for step in step_inputs(run)))
    rewards = step_rewards(run.episode.outcome, verdicts)
    process = [math.nan if value is None else value for value in rewards.process]
    return JudgedRun(run=_with(run, rewards.process, process), verdicts=tuple(verdicts), rewards=rewards)


def _with(run: EpisodeRun, means: Sequence[float | None], process: Sequence[float]) -> EpisodeRun:
    steps = tuple(replace(step, reward=mean) for step, mean in zip(run.episode.steps, means, strict=True))
    return replace(run, episode=replace(run.episode, steps=steps, process_rewards=tuple(process)))
