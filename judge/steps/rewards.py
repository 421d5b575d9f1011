"""The reward of a step: the episode's outcome and the mean of the votes on the step, R_t = o + mean_i r_i.

What it does: `step_reward` for one step, `step_rewards` for an episode, with the steps that nobody could judge by name.
What it leaves out: standardising over a group (`train/advantages.py`, which has the same formula on plain numbers).

A step without a valid vote gets no process term: its reward is the outcome alone. That is the number which a neutral
vote would give too, so it must not pass for one: `StepRewards.unjudged` names each such step and why, its process
reward is None, and whoever trains decides by that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from storage.records import Verdict, Vote


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A step that nobody could judge."""

    index: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRewards:
    """The rewards of an episode's steps, in order."""

    rewards: tuple[float | None, ...]  # R_t; None where the episode has no outcome
    process: tuple[float | None, ...]  # the mean vote; None where nobody voted
    unjudged: tuple[Unjudged, ...]


def process_reward(votes: Sequence[Vote]) -> float | None:
    """The mean of the valid votes, -1 to 1; None without one."""
    return math.fsum(vote.score for vote in votes) / len(votes) if votes else None


def step_reward(outcome: float | None, votes: Sequence[Vote]) -> float | None:
    """R = o + the mean vote; the outcome alone without a vote; None without an outcome, whatever the votes say.

    An episode without an outcome failed, and what failed trains nothing.
    """
    if outcome is None:
        return None
    if not -1 <= outcome <= 1:
        raise ValueError(f"an outcome of {outcome}: between -1 and 1 is needed, or None for an episode that failed")
    return outcome + (process_reward(votes) or 0.0)


def step_rewards(outcome: float | None, verdicts: Sequence[Verdict | None]) -> StepRewards:
    """The rewards of an episode. A verdict that is None says that the step was never judged."""
    votes = [verdict.evaluative if verdict is not None else () for verdict in verdicts]
    return StepRewards(
        rewards=tuple(step_reward(outcome, given) for given in votes),
        process=tuple(process_reward(given) for given in votes),
        unjudged=tuple(
            Unjudged(index, (verdict.error if verdict is not None else None) or "no verdict was given")
            for index, (verdict, given) in enumerate(zip(verdicts, votes, strict=True))
            if not given
        ),
    )
