"""The loss of one micro-batch, as sums and counts, so that any split of a batch adds up to the same gradient.

What it does: per token  -w·min(ρA, clip(ρ, 1-0.2, 1+0.28)A) + β·k3,  ρ = exp(ℓ - ℓ_old),
w = stopgrad(min(exp(ℓ_old - μ), 2)) on the policy term only, k3 = exp(ref - ℓ) - (ref - ℓ) - 1; the mean over a
sample's trained tokens, times its loss weight, summed over samples. Log-ratios are masked before exp.
What it leaves out: dividing by the number of samples (the caller does, once for the whole batch), entropy, dual clip.
With one optimiser step a batch ℓ_old is stopgrad(ℓ), so ρ = 1 and the clip is inert: it acts from the second minibatch.

Axes: B = samples, R = longest response (shorter ones are padded, mask 0).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from train.settings import LossSettings

Outcome = Literal["ok", "nothing to learn", "not finite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss needs beside ℓ. Nothing here carries a gradient; padding may hold anything, even NaN."""

    old_BR: Tensor  # ℓ_old
    rollout_BR: Tensor  # μ, of the engine when the token was sampled
    advantage_BR: Tensor
    ref_BR: Tensor | None  # of the start weights; None where every kl_weight is 0
    mask_BR: Tensor  # bool: tokens that train
    kl_weight_B: Tensor  # β
    loss_weight_B: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """Sums over a micro-batch: add them up over micro-batches, then divide."""

    loss: Tensor  # scalar with gradient: Σ over samples of loss_weight · mean over tokens
    samples: int  # samples with at least one trained token
    outcome: Outcome
    sums: dict[str, float]  # per-token sums for the metrics, and "tokens" to divide them by


def importance_weight(old_BR: Tensor, rollout_BR: Tensor, mask_BR: Tensor, cap: float) -> Tensor:
    """[B, R] min(exp(ℓ_old - μ), cap), 1 where masked. No gradient."""
    log_ratio = torch.where(mask_BR, old_BR - rollout_BR, 0.0).detach()
    return log_ratio.exp().clamp(max=cap)


def sample_means(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """[B] the mean over each sample's trained tokens; 0 for a sample without any."""
    return torch.where(mask_BR, values_BR, 0.0).sum(-1) / mask_BR.sum(-1).clamp(min=1)


def policy_loss(logp_BR: Tensor, inputs: LossInputs, settings: LossSettings) -> LossSums:
    """The summed loss of a micro-batch, and the sums of its metrics. Never raises for bad numbers: see `outcome`."""
    mask_BR = inputs.mask_BR
    samples = int(mask_BR.any(-1).sum()) if mask_BR.numel() else 0
    if samples == 0:
        return LossSums(loss=logp_BR.sum() * 0.0, samples=0, outcome="nothing to learn", sums={"tokens": 0.0})
    logp_BR = torch.where(mask_BR, logp_BR, 0.0)
    old_BR = torch.where(mask_BR, inputs.old_BR, 0.0).detach()
    advantage_BR = torch.where(mask_BR, inputs.advantage_BR, 0.0).detach()
    weight_BR = importance_weight(old_BR, inputs.rollout_BR, mask_BR, settings.max_importance)
    ratio_BR = (logp_BR - old_BR).exp()
    clipped_BR = ratio_BR.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    policy_BR = -weight_BR * torch.minimum(ratio_BR * advantage_BR, clipped_BR * advantage_BR)
    kl_BR = torch.zeros_like(policy_BR)
    if inputs.ref_BR is not None:
        # samples with β = 0 are not scored against the reference: their ref may hold anything
        scored_BR = mask_BR & (inputs.kl_weight_B > 0)[:, None]
        gap_BR = torch.where(scored_BR, inputs.ref_BR.detach() - logp_BR, 0.0)
        kl_BR = gap_BR.exp() - gap_BR - 1
    token_BR = policy_BR + inputs.kl_weight_B[:, None] * kl_BR
    loss = (inputs.loss_weight_B * sample_means(token_BR, mask_BR)).sum()
    sums = {
        "tokens": mask_BR.sum(),
        "policy": policy_BR.sum(),
        "kl_ref": kl_BR.sum(),
        "kl_tokens": (mask_BR & (inputs.kl_weight_B > 0)[:, None]).sum(),
        "clipped": (mask_BR & (ratio_BR * advantage_BR > clipped_BR * advantage_BR)).sum(),
        "weight": torch.where(mask_BR, weight_BR, 0.0).sum(),
        "advantage": advantage_BR.sum(),
        "drift": torch.where(mask_BR, old_BR - inputs.rollout_BR, 0.0).abs().sum(),
    }
    finite = bool(torch.isfinite(loss)) and all(bool(torch.isfinite(value)) for value in sums.values())
    return LossSums(
        loss=loss,
        samples=samples,
        outcome="ok" if finite else "not finite",
        sums={name: float(value.detach()) for name, value in sums.items()},
    )
