"""The loss of one micro-batch, as sums and counts, so that any split of a batch adds up to the same gradient.

What it does: per token  -w·min(ρA, clip(ρ, 1-0.2, 1+0.28)A) + β·KL - η·H + δ·D, each term below beside its function:
the clipped policy term (or -ℓ for SFT), the KL to the start weights, the entropy bonus and the distillation from the
teacher's top K tokens. By default η = δ = 0. The mean over a sample's trained tokens, times its loss weight, summed
over samples. Log-ratios are masked before exp.
What it leaves out: dividing by the number of samples (the caller does, once for the whole batch), and making ℓ, the
entropy and the top-K log-probs out of logits (all at the temperature of the request).
With one optimiser step a batch ℓ_old is stopgrad(ℓ), so ρ = 1 and both clips are inert: they act from the second
minibatch.

Axes: B = samples, R = longest response (shorter ones are padded, mask 0), K = the teacher's most likely tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from train.settings import LossSettings

# Of a whole batch, in the order in which they are asked for:
#   not finite        a sum is NaN or infinite
#   empty             it has no samples
#   all masked        no token trains
#   nothing to learn  every advantage is 0, and no other term is switched on. (Equal ones teach: there is no baseline.)
Outcome = Literal["ok", "not finite", "empty", "all masked", "nothing to learn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss needs beside the student. Nothing here carries a gradient; padding may hold anything, even NaN."""

    old_BR: Tensor  # ℓ_old
    rollout_BR: Tensor  # μ, of the engine when the token was sampled
    advantage_BR: Tensor
    ref_BR: Tensor | None  # of the start weights; None where every kl_weight is 0
    mask_BR: Tensor  # bool: tokens that train
    kl_weight_B: Tensor  # β
    loss_weight_B: Tensor
    teacher_topk_BRK: Tensor | None = None  # the teacher's log-probs of its most likely tokens, most likely first
    has_teacher_B: Tensor | None = None  # bool: the others' teacher_topk may hold anything


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """Sums over a micro-batch: add them up over micro-batches, then divide."""

    loss: Tensor  # scalar with gradient: Σ over samples of loss_weight · mean over tokens
    samples: int  # samples with at least one trained token
    outcome: Literal["ok", "not finite"]  # whether there was anything to learn is asked of the batch: `batch_outcome`
    sums: dict[str, float]  # per-token sums for the metrics, and "tokens" to divide them by


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the loss."""

    token_BR: Tensor  # with gradient and weight, 0 where masked
    learns_BR: Tensor  # bool: tokens that it may move
    sums: dict[str, Tensor]


def batch_outcome(totals: Mapping[str, float]) -> Outcome:
    """What became of a batch, from its micro-batches' `sums` added up (and the loss, where it is among them).

    A micro-batch alone may well be masked or without advantage: it adds 0, and the others still teach.
    """
    if not all(math.isfinite(value) for value in totals.values()):
        return "not finite"
    for name, outcome in (("rows", "empty"), ("tokens", "all masked"), ("learns", "nothing to learn")):
        if not totals.get(name):
            return outcome
    return "ok"


def importance_weight(old_BR: Tensor, rollout_BR: Tensor, mask_BR: Tensor, cap: float) -> Tensor:
    """[B, R] min(exp(ℓ_old - μ), cap), 1 where masked. No gradient."""
    log_ratio = torch.where(mask_BR, old_BR - rollout_BR, 0.0).detach()
    return log_ratio.exp().clamp(max=cap)


def sample_means(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """[B] the mean over each sample's trained tokens; 0 for a sample without any."""
    return torch.where(mask_BR, values_BR, 0.0).sum(-1) / mask_BR.sum(-1).clamp(min=1)


def kl_estimate(log_ratio: Tensor, kind: Literal["k1", "k2", "k3"]) -> Tensor:
    """KL(student ‖ ref) per token sampled by the student, from ref - ℓ (J. Schulman, "Approximating KL Divergence").

    k1 = -log r, k2 = (log r)² / 2, k3 = (r - 1) - log r, with r = exp(ref - ℓ). k1 and k3 are unbiased, k2 is not but
    its variance is small; k2 and k3 are never negative. That is about values. As a loss term (differentiated through
    ℓ of sampled tokens): k1 has gradient ∇ℓ, which is 0 in expectation, so it measures but does not pull; k2's is
    that of KL(student ‖ ref); k3's is that of KL(ref ‖ student).
    """
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - log_ratio - 1


def log_remainder(logp_BRK: Tensor) -> Tensor:
    """[B, R] log(1 - Σ exp(logp)): the tokens outside the K bins together.

    Below 8 eps of the dtype (1e-6 in float32) the remainder is only rounding: it stays there, without gradient, also
    where the bins add up to more than 1.
    """
    log_mass_BR = torch.logsumexp(logp_BRK, -1).clamp(max=-8 * torch.finfo(logp_BRK.dtype).eps)
    # log(1 - exp(x)) in its two exact forms; after the clamp both are finite, so neither spoils the other's gradient
    near_BR = torch.log(-torch.expm1(log_mass_BR))
    far_BR = torch.log1p(-log_mass_BR.exp())
    return torch.where(log_mass_BR > -math.log(2), near_BR, far_BR)


def top_k_divergence(student_BRK: Tensor, teacher_BRK: Tensor, direction: Literal["forward", "reverse"]) -> Tensor:
    """[B, R] KL over K+1 bins: the log-probs of the same K tokens in both, and the exact remainder as the last bin.

    forward = KL(teacher ‖ student), reverse = KL(student ‖ teacher). Never more than the KL over the whole vocabulary,
    and equal to it where both spread the remainder alike. Log-probs must be finite, and float32 or finer.
    """
    student_BRN = torch.cat([student_BRK, log_remainder(student_BRK)[..., None]], -1)
    teacher_BRN = torch.cat([teacher_BRK, log_remainder(teacher_BRK)[..., None]], -1)
    p_BRN, q_BRN = (teacher_BRN, student_BRN) if direction == "forward" else (student_BRN, teacher_BRN)
    return (p_BRN.exp() * (p_BRN - q_BRN)).sum(-1)


def policy_loss(
    logp_BR: Tensor,
    inputs: LossInputs,
    settings: LossSettings,
    *,
    entropy_BR: Tensor | None = None,
    student_topk_BRK: Tensor | None = None,
) -> LossSums:
    """The summed loss of a micro-batch, and the sums of its metrics. Never raises for bad numbers: see `outcome`.

    With gradient: ℓ, the entropy of the student's whole distribution (nats), and the student's log-probs of the
    teacher's most likely tokens. The last two are needed where their weight is above 0, else they are only measured.
    """
    _check_given(inputs, settings, entropy_BR, student_topk_BRK)
    mask_BR = inputs.mask_BR
    samples = int(mask_BR.any(-1).sum()) if mask_BR.numel() else 0
    rows = float(mask_BR.shape[0])
    if samples == 0:
        loss = torch.where(mask_BR, logp_BR, 0.0).sum()
        return LossSums(loss=loss, samples=0, outcome="ok", sums={"rows": rows, "tokens": 0.0, "learns": 0.0})
    logp_BR = torch.where(mask_BR, logp_BR, 0.0)
    main = _imitation(logp_BR, inputs) if settings.objective == "sft" else _policy(logp_BR, inputs, settings)
    terms = [main, _kl(logp_BR, inputs, settings)]
    if entropy_BR is not None:
        terms.append(_entropy(entropy_BR, inputs, settings))
    if student_topk_BRK is not None and inputs.teacher_topk_BRK is not None and inputs.has_teacher_B is not None:
        terms.append(_distill(student_topk_BRK, inputs, settings))
    token_BR, learns_BR = main.token_BR, main.learns_BR
    for term in terms[1:]:
        token_BR, learns_BR = token_BR + term.token_BR, learns_BR | term.learns_BR
    loss = (inputs.loss_weight_B * sample_means(token_BR, mask_BR)).sum()
    sums = {name: float(value.detach()) for term in terms for name, value in term.sums.items()}
    learns_BR = learns_BR & mask_BR & (inputs.loss_weight_B != 0)[:, None]
    sums |= {"rows": rows, "tokens": float(mask_BR.sum()), "learns": float(learns_BR.sum())}
    finite = bool(torch.isfinite(loss)) and all(math.isfinite(value) for value in sums.values())
    return LossSums(loss=loss, samples=samples, outcome="ok" if finite else "not finite", sums=sums)


def _check_given(
    inputs: LossInputs, settings: LossSettings, entropy_BR: Tensor | None, student_topk_BRK: Tensor | None
) -> None:
    """A term that is switched on must have what it needs: nothing is left out silently."""
    assert inputs.ref_BR is not None or not bool((inputs.kl_weight_B > 0).any()), "β > 0 and no reference"
    if settings.entropy_weight > 0 and entropy_BR is None:
        raise ValueError(
            f"loss.entropy_weight is {settings.entropy_weight}: this trainer gives no entropy; set it to 0"
        )
    if settings.distill_weight > 0:
        taught = inputs.has_teacher_B
        if taught is None or (bool(taught.any()) and (student_topk_BRK is None or inputs.teacher_topk_BRK is None)):
            raise ValueError(
                f"loss.distill_weight is {settings.distill_weight}: this trainer gives no top-k log-probs; set it to 0"
            )
    for topk_BRK in (student_topk_BRK, inputs.teacher_topk_BRK):
        if topk_BRK is not None and topk_BRK.shape[-1] < settings.distill_top_k:
            raise ValueError(
                f"loss.distill_top_k is {settings.distill_top_k}: only {topk_BRK.shape[-1]} log-probs a token are given"
            )


def _policy(logp_BR: Tensor, inputs: LossInputs, settings: LossSettings) -> Term:
    """-w·min(ρA, clip(ρ, 1-0.2, 1+0.28)A), ρ = exp(ℓ - ℓ_old), w = stopgrad(min(exp(ℓ_old - μ), 2)).

    With the dual clip c (Ye et al. 2020, arXiv 1912.09729) the min counts down to c·A where A < 0: a token that became
    far more likely, though it was bad, can't pull without bound.
    """
    mask_BR = inputs.mask_BR
    old_BR = torch.where(mask_BR, inputs.old_BR, 0.0).detach()
    advantage_BR = torch.where(mask_BR, inputs.advantage_BR, 0.0).detach()
    weight_BR = importance_weight(old_BR, inputs.rollout_BR, mask_BR, settings.max_importance)
    ratio_BR = (logp_BR - old_BR).exp()
    clipped_BR = ratio_BR.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    gain_BR = torch.minimum(ratio_BR * advantage_BR, clipped_BR * advantage_BR)
    bounded_BR = torch.zeros_like(mask_BR)
    if settings.dual_clip is not None:
        bounded_BR = (advantage_BR < 0) & (gain_BR < settings.dual_clip * advantage_BR)
        gain_BR = torch.where(bounded_BR, settings.dual_clip * advantage_BR, gain_BR)
    policy_BR = -weight_BR * gain_BR
    sums = {
        "policy": policy_BR.sum(),
        "ratio": torch.where(mask_BR, ratio_BR, 0.0).sum(),  # one that overflowed shows here, where the clip hides it
        "clipped": (mask_BR & (ratio_BR * advantage_BR > clipped_BR * advantage_BR)).sum(),
        "dual_clipped": bounded_BR.sum(),
        "weight": torch.where(mask_BR, weight_BR, 0.0).sum(),
        "advantage": advantage_BR.sum(),
        "drift": torch.where(mask_BR, old_BR - inputs.rollout_BR, 0.0).abs().sum(),
    }
    return Term(token_BR=policy_BR, learns_BR=advantage_BR != 0, sums=sums)


def _imitation(logp_BR: Tensor, inputs: LossInputs) -> Term:
    """-ℓ: the policy term with A = 1, without ratio, clip or importance weight. The KL term stays, as β says.

    ℓ_old, μ and the advantages are not looked at, so there is no drift either: the text may be anyone's.
    """
    ones = dict.fromkeys(("ratio", "weight", "advantage"), inputs.mask_BR.sum())
    zeros = dict.fromkeys(("clipped", "dual_clipped", "drift"), torch.zeros(()))
    return Term(token_BR=-logp_BR, learns_BR=inputs.mask_BR, sums={"policy": -logp_BR.sum(), **ones, **zeros})


def _kl(logp_BR: Tensor, inputs: LossInputs, settings: LossSettings) -> Term:
    """β times the estimator, on samples with β > 0: the others are not scored, so their ref may hold anything."""
    scored_BR = inputs.mask_BR & (inputs.kl_weight_B > 0)[:, None]
    kl_BR = torch.zeros_like(logp_BR)
    if inputs.ref_BR is not None:
        kl_BR = kl_estimate(torch.where(scored_BR, inputs.ref_BR.detach() - logp_BR, 0.0), settings.kl)
    sums = {"kl_ref": kl_BR.sum(), "kl_tokens": scored_BR.sum()}
    return Term(token_BR=inputs.kl_weight_B[:, None] * kl_BR, learns_BR=scored_BR, sums=sums)


def _entropy(entropy_BR: Tensor, inputs: LossInputs, settings: LossSettings) -> Term:
    """-η·H: a distribution that stays broad costs less."""
    entropy_BR = torch.where(inputs.mask_BR, entropy_BR, 0.0)
    on_BR = torch.full_like(inputs.mask_BR, settings.entropy_weight > 0)
    return Term(token_BR=-settings.entropy_weight * entropy_BR, learns_BR=on_BR, sums={"entropy": entropy_BR.sum()})


def _distill(student_topk_BRK: Tensor, inputs: LossInputs, settings: LossSettings) -> Term:
    """δ·D: the divergence over the first K bins given and their remainder, on samples with a teacher."""
    assert inputs.teacher_topk_BRK is not None and inputs.has_teacher_B is not None
    taught_BR = inputs.mask_BR & inputs.has_teacher_B[:, None]
    top, even = settings.distill_top_k, -math.log(settings.distill_top_k + 1)  # anything harmless for the others
    student_BRK = torch.where(taught_BR[..., None], student_topk_BRK[..., :top], even)
    teacher_BRK = torch.where(taught_BR[..., None], inputs.teacher_topk_BRK[..., :top].detach(), even)
    distill_BR = torch.where(taught_BR, top_k_divergence(student_BRK, teacher_BRK, settings.distill_direction), 0.0)
    return Term(
        token_BR=settings.distill_weight * distill_BR,
        learns_BR=taught_BR & (settings.distill_weight > 0),
        sums={"distill": distill_BR.sum(), "distill_tokens": taught_BR.sum()},
    )
