"""What a next state says about the answer before it: prompts, parsing, votes, hints, rewards.

What it does: `make_judge(settings)` gives a `Judge`; `await judge.judge(JudgeInput(...))` gives a `Verdict`.
What it leaves out: sessions (`serve/sessions.py`) and what a reward becomes (`train/`).
"""

from judge.base import Judge, JudgeInput, JudgeSettings, make_judge

__all__ = ["Judge", "JudgeInput", "JudgeSettings", "make_judge"]
