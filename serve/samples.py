"""From a judged turn to a Sample, or to the reason why it is none. Pure: no clock, no I/O.

What it leaves out: whether a sample is still fresh enough: that is decided when a batch is formed (`serve/batches.py`).
"""

from dataclasses import dataclass
from typing import Any

from serve.rendering import HintDoesNotFit, Renderer
from storage.records import Disposition, Exchange, Sample, Verdict, new_id

# What shifts the engine's log-probs away from the model's own: such requests can't be weighted (design, section 6).
# Each with the values that change nothing.
_SHIFTING: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
}


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Which turns may train."""

    learning_tenants: tuple[str, ...] = ("owner",)  # whose turns train; the others are served and recorded
    train_cut_answers: bool = False  # answers that were cut by length
    max_train_tokens: int = 2048  # prompt and response together; longer turns are left out with a reason
    kl_weight: float = 0.05  # beta: the paper's 0 lets a 135M model drift within a few updates
    loss_weight: float = 1.0


def make_sample(
    exchange: Exchange, verdict: Verdict, renderer: Renderer, settings: SampleSettings, now: float
) -> Sample | Disposition:
    """The sample of a main turn, or a Disposition that says why it does not train. `now` is in Unix seconds."""
    fault = _why_not(exchange, verdict, settings)
    enhanced = None
    if fault is None and verdict.hint is not None:
        try:
            enhanced = renderer.enhanced_prompt_ids(
                exchange.messages, exchange.tools, verdict.hint, expect=exchange.prompt_ids
            )
        except HintDoesNotFit as why:
            fault = ("hint does not fit", str(why))
    if (
        fault is None
        and enhanced is not None
        and len(enhanced) + len(exchange.response_ids) > settings.max_train_tokens
    ):
        fault = ("too long", f"with the hint it is {len(enhanced) + len(exchange.response_ids)} tokens; "
                 f"at most {settings.max_train_tokens} train")  # fmt: skip
    if fault is not None:
        reason, detail = fault
        return Disposition(
            exchange_id=exchange.exchange_id, sample_id=None, reason=reason, detail=detail, decided_at=now
        )
    prompt, response = tuple(exchange.prompt_ids), tuple(exchange.response_ids)
    return Sample(
        sample_id=new_id(),
        exchange_id=exchange.exchange_id,
        tenant=exchange.tenant,
        track=exchange.track,
        token_ids=prompt + response,
        mask=(0,) * len(prompt) + (1,) * len(response),
        rollout_logprobs=tuple(exchange.response_logprobs),
        temperature=float(exchange.sampling.get("temperature", 1.0)),
        versions=exchange.version_spans,
        reward=None if verdict.reward is None else float(verdict.reward),
        hint=verdict.hint,
        enhanced_prompt_ids=enhanced,
        group_id=None,
        step_index=None,
        kl_weight=settings.kl_weight,
        loss_weight=settings.loss_weight,
        created_at=now,
    )


def _why_not(exchange: Exchange, verdict: Verdict, settings: SampleSettings) -> tuple[str, str] | None:
    if verdict.reward is None and verdict.hint is None:
        return "unjudged", verdict.error or "the judge gave no valid vote"
    if exchange.tenant not in settings.learning_tenants:
        return "tenant does not train", f"{exchange.tenant} is not in the model's learning group"
    if exchange.finish_reason == "length" and not settings.train_cut_answers:
        return "cut by length", f"the answer was cut after {len(exchange.response_ids)} tokens"
    if exchange.finish_reason not in ("stop", "tool_calls", "length"):
        return exchange.finish_reason, exchange.error or f"the answer ended with {exchange.finish_reason}"
    if not exchange.response_ids:
        return "empty answer", "the engine sampled no token"
    shifting = [name for name, neutral in _SHIFTING.items() if exchange.sampling.get(name) not in neutral]
    if shifting:
        return "shifted sampling", f"sampled with {', '.join(shifting)}: its log-probs are not the model's own"
    tokens = len(exchange.prompt_ids) + len(exchange.response_ids)
    if tokens > settings.max_train_tokens:
        return "too long", f"{tokens} tokens; at most {settings.max_train_tokens} train (samples.max_train_tokens)"
    if verdict.reward == 0 and verdict.hint is None:
        return "neutral", "the next state said neither good nor bad"
    return None
