"""From a judged turn to a sample, or to the one reason why it is none."""

from dataclasses import replace
from typing import Any

import pytest

from serve.rendering import HintDoesNotFit
from serve.samples import SampleSettings, make_sample
from storage.records import Disposition, Exchange, Sample, Verdict, VersionSpan

SETTINGS = SampleSettings(max_train_tokens=10)


class StandInRenderer:
    """Puts three tokens for the hint in front; refuses where it is told to."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses

    def enhanced_prompt_ids(self, messages: Any, tools: Any, hint: str, expect: tuple[int, ...]) -> tuple[int, ...]:
        if self.refuses:
            raise HintDoesNotFit("rendering without the hint gives other ids")
        return (7, 7, 7, *expect)


def exchange(**changes: Any) -> Exchange:
    made = Exchange(
        exchange_id="x", tenant="owner", model="m", version=2, received_at=0.0, messages=[], tools=None,
        sampling={"temperature": 0.7}, prompt_ids=(1, 2, 3), response_ids=(4, 5), response_logprobs=(-1.0, -2.0),
        version_spans=(VersionSpan(version=2, start=0, end=2),), answer={"content": "a"}, finish_reason="stop",
        latency_s=1.0, first_token_s=0.1, client="",
    )  # fmt: skip
    return replace(made, **changes)


def verdict(reward: int | None = -1, hint: str | None = None, error: str | None = None) -> Verdict:
    return Verdict(
        verdict_id="v", exchange_id="x", next_state_id="n", evaluative=(), reward=reward, directive=(), hint=hint,
        chosen_by=None, judge="rules/1", prompt_version="1", latency_s=0.0, error=error, judged_at=0.0,
    )  # fmt: skip


def made(e: Exchange, v: Verdict, settings: SampleSettings = SETTINGS, refuses: bool = False) -> Sample | Disposition:
    return make_sample(e, v, StandInRenderer(refuses), settings, 5.0)  # type: ignore[arg-type]


def test_a_sample_has_the_engines_own_ids_and_log_probs() -> None:
    sample = made(exchange(), verdict(hint="Start with the number."))
    assert isinstance(sample, Sample)
    assert sample.token_ids == (1, 2, 3, 4, 5) and sample.mask == (0, 0, 0, 1, 1)
    assert sample.rollout_logprobs == (-1.0, -2.0) and sample.enhanced_prompt_ids == (7, 7, 7, 1, 2, 3)
    assert (sample.temperature, sample.reward, sample.version, sample.kl_weight) == (0.7, -1.0, 2, SETTINGS.kl_weight)


@pytest.mark.parametrize(
    ("changes", "judged", "reason"),
    [
        ({}, verdict(reward=None, error="timed out"), "unjudged"),
        ({}, verdict(reward=0), "neutral"),
        ({"tenant": "guest"}, verdict(), "tenant does not train"),
        ({"finish_reason": "length"}, verdict(), "cut by length"),
        ({"finish_reason": "abort"}, verdict(), "abort"),
        ({"sampling": {"presence_penalty": 0.5}}, verdict(), "shifted sampling"),
        ({"sampling": {"repetition_penalty": 1.2}}, verdict(), "shifted sampling"),
        ({"sampling": {"response_format": {"type": "json_object"}}}, verdict(), "shifted sampling"),
        ({"sampling": {"ignore_eos": True}}, verdict(), "shifted sampling"),
        ({"prompt_ids": tuple(range(9))}, verdict(), "too long"),
        ({"prompt_ids": tuple(range(6))}, verdict(hint="Be brief, please."), "too long"),
        ({"response_ids": (), "response_logprobs": (), "version_spans": ()}, verdict(), "empty answer"),
    ],
)
def test_what_does_not_train_says_why(changes: dict[str, Any], judged: Verdict, reason: str) -> None:
    found = made(exchange(**changes), judged)
    assert isinstance(found, Disposition) and found.reason == reason and found.detail


def test_a_hint_that_does_not_fit_leaves_the_turn_out_by_name() -> None:
    found = made(exchange(), verdict(hint="Be brief, please."), refuses=True)
    assert isinstance(found, Disposition) and found.reason == "hint does not fit"


@pytest.mark.parametrize("sampling", [{}, {"presence_penalty": 0, "repetition_penalty": 1.0}, {"temperature": 0}])
def test_neutral_sampling_trains(sampling: dict[str, Any]) -> None:
    assert isinstance(made(exchange(sampling=sampling), verdict()), Sample)


def test_cut_answers_train_where_they_are_let() -> None:
    settings = SampleSettings(train_cut_answers=True)
    assert isinstance(made(exchange(finish_reason="length"), verdict(), settings), Sample)
