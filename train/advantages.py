"""Advantages per response token, from a reward and from what a teacher who saw the hint would have said.

What it does: binary, OPD (on-policy distillation) and the combination of both. Pure, on CPU tensors, without gradient.
What it leaves out: step-wise and group-standardised rewards of the general tracks.

Axes: R = response tokens of one sample.
"""

import torch
from torch import Tensor

from train.settings import AdvantageSettings


def binary(reward: float, length: int) -> Tensor:
    """[R] the reward, on every token."""
    return torch.full((length,), float(reward))


def opd(teacher_R: Tensor, old_R: Tensor, gap_clip: float) -> Tensor:
    """[R] clip(teacher - old, ±c): up where the teacher likes the token more than the student did."""
    return (teacher_R - old_R).detach().clamp(-gap_clip, gap_clip)


def combined(reward: float | None, teacher_R: Tensor | None, old_R: Tensor, settings: AdvantageSettings) -> Tensor:
    """[R] w_b r + w_o clip(teacher - old, ±c); a missing reward or teacher leaves its term out."""
    if reward is None and teacher_R is None:
        raise ValueError("an advantage needs a reward or a teacher: this sample has neither")
    total_R = torch.zeros_like(old_R, requires_grad=False)
    if reward is not None:
        total_R = total_R + settings.reward_weight * binary(reward, old_R.numel()).to(old_R.dtype)
    if teacher_R is not None:
        total_R = total_R + settings.opd_weight * opd(teacher_R, old_R, settings.gap_clip)
    return total_R
