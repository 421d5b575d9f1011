"""The `verifiable` step judge: a step whose facts hold a verdict of their own.

What it does: a call that does not fit its schema is -1; the final answer's check decides; more of the task's checks
passed than before is +1, fewer is -1, as many is 0; a call that fits its schema is +1 where nothing else is known.
What it leaves out: everything that would need reading. A step without such a fact gets no vote, and `error` says so.
"""

import time

from judge.steps.base import StepInput
from judge.steps.facts import StepFacts, read_facts
from judge.votes import make_verdict, vote
from storage.records import Verdict, Vote

VERSION = "1"


class StepVerifiableJudge:
    """One vote by a fact, or none."""

    def __init__(self) -> None:
        self.name = f"step-verifiable/{VERSION}"

    async def judge(self, step: StepInput) -> Verdict:
        """At once; facts that can't be read are no vote."""
        started = time.perf_counter()
        errors: list[str] = []
        given: Vote | None = None
        try:
            given = verified(read_facts(step.facts))
        except ValueError as unreadable:  # what the environment said is not in the vocabulary
            errors.append(str(unreadable))
        else:
            errors += [] if given else ["no fact of this step is a verdict"]
        return make_verdict(
            step.as_turn(),
            judge=self.name,
            prompt_version=self.name,
            started=started,
            evaluative=[given] if given else [],
            errors=errors,
        )


def verified(facts: StepFacts) -> Vote | None:
    """The vote of the first fact that is a verdict."""
    if facts.schema_valid is False:
        return vote(
            -1,
            "verifiable: the call does not fit its schema"
            + (f": {facts.fault}" if isinstance(facts.fault, str) else ""),
        )
    if facts.correct is not None:
        return vote(1 if facts.correct else -1, f"verifiable: the answer is {'right' if facts.correct else 'wrong'}")
    if facts.checks_passed is not None and facts.checks_passed_before is not None:
        gained = facts.checks_passed - facts.checks_passed_before
        sign = (gained > 0) - (gained < 0)
        return vote(sign, f"verifiable: {facts.checks_passed_before} checks passed before, {facts.checks_passed} after")
    if facts.schema_valid:
        return vote(1, "verifiable: the call fits its schema")
    return None
