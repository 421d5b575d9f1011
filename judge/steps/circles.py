"""Whether a step goes in circles, and whether it shows anything new.

What it does: compares a step with the earlier ones, calls by calls and result by result.
What it leaves out: attempts that are alike but not the same.
"""

import re

from judge.outcomes import read_outcome
from judge.replies import Reading
from judge.steps.actions import commands, core, runs_tests
from judge.steps.base import StepInput
from judge.steps.facts import StepFacts
from judge.steps.screens import screen_changed

SHORT_CHARS = 20
_TIMES = re.compile(r"\b\d+(?:\.\d+)?\s?(?:ms|s|sec|seconds)\b")
_ENDING = re.compile(
    r"^[^\w\n]*(?:exit(?:ed)?[ _]?(?:with )?(?:code|status)|cwd|stderr|stdout)[^\w\n]*(?:-?\d+[^\w\n]*|[:=].*)?$|"
    r"^[^\n]{0,40}\b(?:no|without any) output\b[^\n]*$|^\$ .*$",
    re.IGNORECASE | re.MULTILINE,
)


def in_circles(step: StepInput, facts: StepFacts) -> Reading | None:
    """The same calls as an earlier step with the same result, or the same calls right after they failed.

    Running the tests again after something else was done is no circle, nor is anything that changed the screen or the
    repository.
    """
    if facts.diff_changed or screen_changed(step, facts):
        return None
    this, result = core(step.action), _folded(step.result)
    earlier = [(core(action), _folded(said)) for action, said in step.history]
    if not this or not earlier:
        return None
    first = step.index - len(earlier)
    at_once = earlier[-1][0] == this
    same = [number for number, pair in enumerate(earlier, first + 1) if pair == (this, result)]
    if same and (at_once or not runs_tests(step.action)):
        return Reading(-1, f"in circles: the same action and the same result as in step {same[-1]}")
    if at_once and _failed(step.result, facts) and read_outcome(step.history[-1][1]).score == -1:
        return Reading(-1, f"in circles: step {step.index} failed with the same action")
    return None


def is_news(step: StepInput) -> bool:
    """Whether the result holds more than the action wrote itself and the earlier results showed."""
    result = _shown(step.result)
    if not result or _folded(result) in _folded(commands(step.action)):
        return False
    return not any(_stands_in(result, _shown(said)) for _, said in step.history)


def _failed(result: str, facts: StepFacts) -> bool:
    if facts.exit_code is not None:
        return facts.exit_code != 0
    return bool(facts.error_type) or read_outcome(result).score == -1


def _shown(text: str) -> str:
    """What was printed, without the lines in which an environment says how a command ended."""
    return _ENDING.sub("", text).strip()


def _stands_in(text: str, earlier: str) -> bool:
    """As a whole; a short one as a line of its own, for a number stands in many texts by chance."""
    if len(text) >= SHORT_CHARS:
        return _folded(text) in _folded(earlier)
    return _folded(text) in {_folded(line) for line in (earlier, *earlier.splitlines())}


def _folded(text: str) -> str:
    """White space as one space, and times as one word: they differ at every run."""
    return _TIMES.sub("<time>", " ".join(text.split()))
