"""The `rules` judge: transparent rules over the next state. The default where no model is good enough to judge.

What it does: feedback with a score decides by the score; a tool's or an environment's output is read by
`outcomes.py`; a person's reply by `replies.py`. Each vote's text names the rule and what it found.
What it leaves out: looking at the answer. Only what followed counts, so a rule can't be argued with by the answer.
"""

import time

from judge.base import JudgeInput
from judge.feedback import score_vote
from judge.lexicon import lexicon
from judge.outcomes import read_outcome
from judge.replies import Reading, hint_from, read_reply
from judge.votes import make_verdict, vote
from storage.records import Verdict

VERSION = "1"


class RulesJudge:
    """One vote by rule. It has no state and never fails."""

    def __init__(self) -> None:
        self.name = f"rules/{VERSION}"

    async def judge(self, item: JudgeInput) -> Verdict:
        """At once: no model is asked."""
        started = time.perf_counter()
        reading = read_state(item)
        given = vote(reading.score, f"rule: {reading.rule}")
        return make_verdict(
            item,
            judge=self.name,
            prompt_version=f"rules/{VERSION}+phrases/{lexicon().version}",
            started=started,
            evaluative=[given],
            directive=[vote(reading.score, given.text, reading.hint)] if reading.hint else [],
        )


def read_state(item: JudgeInput) -> Reading:
    """The rule that applies to this kind of next state."""
    state = item.next_state
    if state.role in ("tool", "environment"):
        return read_outcome(state.content)
    if state.role == "feedback" and (given := score_vote(state)):
        hint = hint_from(lexicon(), state.content) if given.score < 1 else None
        return Reading(given.score, given.text, hint)
    return read_reply(state.content, item.question)
