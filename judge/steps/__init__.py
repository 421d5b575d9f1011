"""What a step of an episode was worth, judged by what it led to: the process reward of the tracks.

What it does: `make_step_judge(settings)` gives a `StepJudge`; `await judge.judge(StepInput(...))` gives a `Verdict`;
`step_rewards(outcome, verdicts)` gives R = o + mean vote per step, and names the steps that nobody could judge.
What it leaves out: running episodes (`serve/environments/`), and what becomes of a reward (`train/`).
"""

from judge.steps.base import Screen, StepInput, StepJudge, StepJudgeSettings, Track, action_text, make_step_judge
from judge.steps.prompts import PROMPT_VERSION, RenderLimits, render
from judge.steps.rewards import StepRewards, Unjudged, process_reward, step_reward, step_rewards

__all__ = [
    "PROMPT_VERSION",
    "RenderLimits",
    "Screen",
    "StepInput",
    "StepJudge",
    "StepJudgeSettings",
    "StepRewards",
    "Track",
    "Unjudged",
    "action_text",
    "make_step_judge",
    "process_reward",
    "render",
    "step_reward",
    "step_rewards",
]
