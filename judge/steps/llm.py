"""The `llm` step judge: any model behind an OpenAI-compatible endpoint.

What it does: asks for m evaluative votes on a step, and m directive ones where hints are wanted, all at once, each with
its own fence, deadline and retries (`judge/llm.py`). The reward of the verdict is the majority; the step's process
reward is the mean of the votes (`rewards.py`).
What it leaves out: a 0. The judge is asked for 1 or -1, as in the paper's tracks; another score is no vote.
"""

import asyncio
import time

import openai

from judge.llm import LlmJudge, NoVote
from judge.prompts import new_fence
from judge.steps.base import StepInput, StepJudgeSettings
from judge.steps.prompts import PROMPT_VERSION, judged_texts, render
from judge.votes import make_verdict
from storage.records import Verdict, Vote

VERSION = "1"


class StepLlmJudge:
    """Judges by asking a model. One instance may judge many steps at once."""

    def __init__(self, settings: StepJudgeSettings, client: openai.AsyncOpenAI | None = None) -> None:
        self.settings = settings
        self.name = f"step-llm/{VERSION}:{settings.model}"
        self._model = LlmJudge(settings, client)

    async def judge(self, step: StepInput) -> Verdict:
        """Never raises because the judge model failed."""
        started = time.perf_counter()
        m = self.settings.votes_for(step.track)
        kinds = [False] * m + [True] * (m if self.settings.directive else 0)
        got = list(zip(kinds, await asyncio.gather(*(self._vote(step, kind) for kind in kinds)), strict=True))
        return make_verdict(
            step.as_turn(),
            judge=self.name,
            prompt_version=PROMPT_VERSION,
            started=started,
            evaluative=[v for directive, v in got if not directive and isinstance(v, Vote)],
            directive=[v for directive, v in got if directive and isinstance(v, Vote)],
            hint_choice=self.settings.hint_choice,
            errors=[str(v) for directive, v in got if not directive and isinstance(v, NoVote)],
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._model.close()

    async def _vote(self, step: StepInput, directive: bool) -> Vote | NoVote:
        fence = new_fence()
        messages = render(
            step, images=self.settings.images, limits=self.settings.limits, fence=fence, directive=directive
        )
        given = await self._model.asked(messages, fence, judged_texts(step), directive=directive)
        if isinstance(given, Vote) and given.score == 0:
            return NoVote("the judge scored 0, which it was not offered")
        return given
