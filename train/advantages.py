"""Advantages per response token, from a reward and from what a teacher who saw the hint would have said.

What it does: binary, OPD (on-policy distillation) and the combination of both; for tracks that reward steps, the
reward of a step and its standardisation over its group. Pure, on CPU tensors, without gradient.
What it leaves out: which steps form a group (the caller's keys), and counting the steps that are dropped.

Axes: R = response tokens of one sample.
"""

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from train.settings import AdvantageSettings

MIN_SPREAD = 1e-6  # a group whose rewards spread less says nothing about which step was better


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


def step_reward(outcome: float, votes: Sequence[float]) -> float:
    """R = o + the mean of the step's votes. Without votes it is the episode's outcome alone."""
    return outcome + math.fsum(votes) / len(votes) if votes else float(outcome)


def standardised(rewards: Sequence[float], keys: Sequence[Hashable]) -> list[float | None]:
    """(R - mean) / population std over the rewards with the same key, as (group_id, step_index).

    None where nothing can be learnt: a group of fewer than two, or with a std below 1e-6. The caller drops and counts
    those. Sums are exact (fsum), so the order does not matter to the last bit.
    """
    if len(rewards) != len(keys):
        raise ValueError(f"standardised: {len(rewards)} rewards and {len(keys)} keys: must be of one length")
    groups: dict[Hashable, list[int]] = {}
    for index, (reward, key) in enumerate(zip(rewards, keys, strict=True)):
        if not math.isfinite(reward):
            raise ValueError(f"standardised: reward {index} is {reward}: must be finite")
        groups.setdefault(key, []).append(index)
    found: list[float | None] = [None] * len(rewards)
    for indices in groups.values():
        mean = math.fsum(rewards[index] for index in indices) / len(indices)
        std = math.sqrt(math.fsum((rewards[index] - mean) ** 2 for index in indices) / len(indices))
        if len(indices) >= 2 and std >= MIN_SPREAD:
            for index in indices:
                found[index] = (rewards[index] - mean) / std
    return found
