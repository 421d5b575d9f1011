"""Feedback that came through `POST /v1/feedback`: a number or a thumb decides, whatever the judge.

What it does: one vote from a score. What it leaves out: feedback in words alone, which the judges read as a reply.
"""

from judge.votes import vote
from storage.records import NextState, Vote

DEAD_ZONE = 0.2  # scores nearer to 0 than this say neither good nor bad (three of five stars is 0)


def score_vote(state: NextState) -> Vote | None:
    """+1, 0 or -1 by the score that the user gave; None where no number was given."""
    if state.score is None:
        return None
    sign = 0 if abs(state.score) < DEAD_ZONE else (1 if state.score > 0 else -1)
    return vote(sign, f"score: {state.score:+g} given by the user")
