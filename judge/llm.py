"""The `llm` judge: any model behind an OpenAI-compatible endpoint.

What it does: asks for m evaluative and m directive votes at once, each with its own fence, deadline and retries, and
counts the valid ones. A vote whose request fails, times out, is cut off or can't be parsed is no vote.
What it leaves out: serving the judge model, and `overlap` (see `votes.py`). A judge that is the policy itself moves
while it judges: see the README.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import openai
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from judge import prompts
from judge.base import JudgeInput, JudgeSettings
from judge.feedback import score_vote
from judge.parsing import read_hint, read_score
from judge.votes import make_verdict, vote
from storage.records import Verdict, Vote

VERSION = "1"
_RETRIED_STATUS = frozenset({408, 409, 425, 429})


class NoVote(Exception):
    """Why one vote is missing, in a few words."""


class LlmJudge:
    """Judges by asking a model. One instance may judge many turns at once."""

    def __init__(self, settings: JudgeSettings, client: openai.AsyncOpenAI | None = None) -> None:
        self.settings = settings
        self.name = f"llm/{VERSION}:{settings.model}"
        self._client = client or openai.AsyncOpenAI(
            base_url=settings.base_url, api_key=settings.api_key, max_retries=0, timeout=settings.timeout_s
        )
        self._slots = asyncio.Semaphore(settings.concurrency)

    async def judge(self, item: JudgeInput) -> Verdict:
        """Never raises because the judge model failed; a score that the user gave needs no evaluative votes."""
        started = time.perf_counter()
        given = score_vote(item.next_state)
        m = self.settings.votes
        jobs = [self._vote(item, directive=False) for _ in range(0 if given else m)]
        has_words = bool(item.next_state.content.strip())
        jobs += [self._vote(item, directive=True) for _ in range(m if self.settings.directive and has_words else 0)]
        kinds = ["evaluative"] * (0 if given else m) + ["directive"] * m
        got = list(zip(kinds, await asyncio.gather(*jobs), strict=False))
        evaluative = [v for kind, v in got if kind == "evaluative" and isinstance(v, Vote)]
        return make_verdict(
            item,
            judge=self.name,
            prompt_version=prompts.PROMPT_VERSION,
            started=started,
            evaluative=[given] if given else evaluative,
            directive=[v for kind, v in got if kind == "directive" and isinstance(v, Vote)],
            hint_choice=self.settings.hint_choice,
            errors=[str(v) for _, v in got if isinstance(v, NoVote)],
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def _vote(self, item: JudgeInput, *, directive: bool) -> Vote | NoVote:
        fence = prompts.new_fence()
        make = prompts.directive if directive else prompts.evaluative
        messages = make(item, fence, self.settings.max_chars)
        judged = (item.question, item.answer, item.next_state.content)
        return await self.asked(messages, fence, judged, directive=directive)

    async def asked(
        self, messages: list[dict[str, Any]], fence: str, judged: Sequence[str], *, directive: bool
    ) -> Vote | NoVote:
        """One vote, or why there is none."""
        limit = self.settings.max_hint_tokens if directive else self.settings.max_tokens
        try:
            async with self._slots, asyncio.timeout(self.settings.timeout_s):
                text = await self._ask(messages, limit)
        except TimeoutError:
            return NoVote(f"the judge did not answer within {self.settings.timeout_s:g} s")
        except NoVote as why:
            return why
        score = read_score(text, fence, judged)
        if score is None:
            return NoVote(f"no score in the judge's text, which ends: {text[-80:]!r}")
        return vote(score, text, read_hint(text, fence) if directive and score == 1 else None)

    async def _ask(self, messages: list[dict[str, Any]], max_tokens: int) -> str:
        """The judge's text; requests that may succeed later are sent again, a bounded number of times."""
        for attempt in range(self.settings.retries + 1):
            try:
                return await self._request(messages, max_tokens)
            except (openai.APIConnectionError, openai.APIStatusError) as failure:
                if attempt == self.settings.retries or not _may_pass(failure):
                    raise NoVote(self._described(failure, attempt + 1)) from failure
                await asyncio.sleep(_pause_s(self.settings.backoff_s, attempt))
            except (openai.OpenAIError, ValueError) as failure:  # an answer that is not OpenAI's JSON
                raise NoVote(f"the judge's answer is malformed: {type(failure).__name__}") from failure
        raise AssertionError("the loop above returns or raises")

    async def _request(self, messages: list[dict[str, Any]], max_tokens: int) -> str:
        completion = await self._client.chat.completions.create(
            model=self.settings.model,
            messages=messages,  # type: ignore[arg-type]
            temperature=self.settings.temperature,
            max_tokens=max_tokens,
        )
        choices = completion.choices if isinstance(completion, ChatCompletion) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Choice):  # the SDK does not check what a server sends
            raise NoVote("the judge's answer is malformed: no choices")
        if choice.finish_reason == "length":
            raise NoVote(f"the judge's text was cut at {max_tokens} tokens")
        text = getattr(choice.message, "content", None)
        if not isinstance(text, str) or not text.strip():
            raise NoVote("the judge's text is empty")
        return text

    def _described(self, failure: openai.APIError, tries: int) -> str:
        """For the verdict's error: what went wrong, without the key."""
        status = getattr(failure, "status_code", None)
        what = f"HTTP {status}" if status else type(failure).__name__
        message = " ".join(str(failure).split())[:160].replace(self.settings.api_key, "***")
        return f"{what} after {tries} {'try' if tries == 1 else 'tries'}: {message}"


def _may_pass(failure: openai.APIError) -> bool:
    status = getattr(failure, "status_code", None)
    return status is None or status >= 500 or status in _RETRIED_STATUS


def _pause_s(backoff_s: float, attempt: int, draw: Callable[[], float] = random.random) -> float:
    """Doubles with each try, with up to half of it added so that votes don't come back in step."""
    return backoff_s * 2**attempt * (1 + draw() / 2)
