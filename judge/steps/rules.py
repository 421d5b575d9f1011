"""The `rules` step judge: transparent rules over an action and what came of it. The first that applies decides.

What it does: what the environment knows for certain comes first (a malformed call, a step that was stopped), then going
in circles, then what is special to the track, then how the command ended. Each vote's text names the rule. A step that
is -1 and whose result says how it should have been gives a hint.
What it leaves out: whether a step serves the task. A command that shows something new is +1 whatever it shows, and a
policy can learn to look busy: the outcome has to pull against that. Where no rule applies the vote is 0.
"""

import time
from collections.abc import Callable

from judge.replies import Reading
from judge.steps.actions import ends
from judge.steps.base import StepInput
from judge.steps.circles import in_circles, is_news
from judge.steps.commands import read_edit, read_ending, read_tests
from judge.steps.facts import StepFacts, read_facts
from judge.steps.hints import hint_from
from judge.steps.screens import read_screens
from judge.votes import make_verdict, vote
from storage.records import Verdict

VERSION = "1"

Rule = Callable[[StepInput, StepFacts], Reading | None]


class StepRulesJudge:
    """One vote by rule, without state."""

    def __init__(self) -> None:
        self.name = f"step-rules/{VERSION}"

    async def judge(self, step: StepInput) -> Verdict:
        """At once; facts that can't be read are no vote."""
        started = time.perf_counter()
        try:
            reading = read_step(step)
        except ValueError as unreadable:  # what the environment said is not in the vocabulary
            return make_verdict(
                step.as_turn(), judge=self.name, prompt_version=self.name, started=started, errors=[str(unreadable)]
            )
        given = vote(reading.score, f"rule: {reading.rule}")
        return make_verdict(
            step.as_turn(),
            judge=self.name,
            prompt_version=self.name,
            started=started,
            evaluative=[given],
            directive=[vote(reading.score, given.text, reading.hint)] if reading.hint else [],
        )


def read_step(step: StepInput) -> Reading:
    """The first rule that applies, with a hint where the step failed and its result gives one."""
    facts = read_facts(step.facts)
    for rule in _RULES[step.track]:
        if reading := rule(step, facts):
            hint = hint_from(step.result, _fault(step, facts)) if reading.score == -1 else None
            return Reading(reading.score, reading.rule, hint)
    return Reading(0, "nothing that a rule can read")


def read_fault(step: StepInput, facts: StepFacts) -> Reading | None:
    """The call could not be read, or does not fit its schema."""
    if facts.fault or facts.schema_valid is False:
        return Reading(-1, f"malformed call: {_fault(step, facts) or 'it does not fit its schema'}")
    return None


def _fault(step: StepInput, facts: StepFacts) -> str | None:
    return step.result if facts.fault is True else facts.fault or None


def read_stop(step: StepInput, facts: StepFacts) -> Reading | None:
    """The environment stopped the step."""
    if facts.timed_out:
        return Reading(-1, "stopped: it took too long")
    return Reading(-1, f"stopped: {facts.ended}") if facts.ended else None


def read_end(step: StepInput, facts: StepFacts) -> Reading | None:
    """The policy said that it is finished: whether it is, the outcome says."""
    if facts.done or ends(step.action):
        return Reading(0, "finished: the outcome says whether it is")
    return None


def read_news(step: StepInput, facts: StepFacts) -> Reading | None:
    """It went well, and something was shown that was not known."""
    if not facts.succeeded:
        return None
    if is_news(step):
        return Reading(1, "new information, and no error")
    return Reading(0, "no error, and nothing new was shown")


_FIRST: tuple[Rule, ...] = (read_fault, read_stop, in_circles)
_LAST: tuple[Rule, ...] = (read_end, read_ending, read_news)
_RULES: dict[str, tuple[Rule, ...]] = {
    "terminal": (*_FIRST, read_tests, *_LAST),
    "tool_call": (*_FIRST, *_LAST),
    "swe": (*_FIRST, read_tests, read_edit, *_LAST),
    "gui": (*_FIRST, read_end, read_screens),
}
