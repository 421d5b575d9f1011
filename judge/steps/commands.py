"""How a command, a call, a run of tests or an edit ended.

What it does: reads the facts of the environment first, and what was printed where they are silent.
What it leaves out: exit codes without a known error, which are 0: many commands use them to answer.
"""

import re

from judge.outcomes import read_outcome
from judge.replies import Reading
from judge.steps.actions import Counts, asks_by_exit_code, core, count_tests, edits, runs_program
from judge.steps.base import StepInput
from judge.steps.facts import StepFacts

_NOT_RUN = {126: "can't be executed", 127: "is not there"}
_ERROR = re.compile(
    r"No such file or directory|command not found|Permission denied|Is a directory|Not a directory|syntax error|"
    r"unexpected (?:token|EOF|end of file)|(?:invalid|unrecognized|illegal|unknown) (?:option|argument|command|flag)|"
    r"missing operand|cannot (?:access|open|stat|create|remove)|can't open file|fatal: |There is no terminal here|"
    r"^usage: |\b(?:Syntax|Indentation|Name|ModuleNotFound|Import|Attribute|Type|Key|Index|Value|FileNotFound)Error\b",
    re.IGNORECASE | re.MULTILINE,
)
_RETURNED = re.compile(r"^(?:\[\d+ \w+\] )?(?:\w+ returned )?(\{.*\})\s*$", re.MULTILINE)  # an object, as JSON


def read_tests(step: StepInput, facts: StepFacts) -> Reading | None:
    """A run of tests, against the last run by the same call. What the environment counted goes before what was printed.

    Another call runs other tests, so nothing can be compared: failures are then a finding, 0.
    """
    now = _counted(facts) or count_tests(step.action, step.result)
    if now is None:
        return None
    this = core(step.action)
    earlier = (count_tests(action, result) for action, result in reversed(step.history) if core(action) == this)
    before = next((counts for counts in earlier if counts), None)
    if before is None:
        if now.failed:
            return Reading(0, f"tests ran, and {now.failed} failed: nothing to compare with")
        return Reading(1, f"tests passed: {now.passed}") if now.passed else None
    if now.failed > before.failed:
        return Reading(-1, f"more tests failed: {before.failed} before, {now.failed} now")
    if before.failed and not now.failed and now.passed:
        return Reading(1, "tests turned green")
    if now.failed < before.failed and now.passed >= before.passed:
        return Reading(1, f"fewer tests failed: {before.failed} before, {now.failed} now")
    return Reading(0, f"the tests went as before: {now.failed} failed")


def read_edit(step: StepInput, facts: StepFacts) -> Reading | None:
    """An edit that could not be applied, changed nothing, or changed the repository."""
    if facts.edit_applied is False:
        return Reading(-1, "the edit could not be applied")
    if facts.diff_changed is False and (facts.edit_applied or (edits(step.action) and facts.exit_code == 0)):
        return Reading(-1, "the edit changed nothing")
    if facts.diff_changed and (facts.edit_applied or facts.succeeded):
        return Reading(1, "the edit was applied, and the repository changed")
    return None


def read_ending(step: StepInput, facts: StepFacts) -> Reading | None:
    """A command that could not run or failed, an exception, or an error in what a function gave back."""
    failed = facts.calls_ok.count(False) if facts.calls_ok else 0
    if (facts.error_type or failed) and "AssertionError" in (facts.error_type or step.result):
        return Reading(0, "an assertion did not hold, which may be what was to be found out")
    if facts.error_type:
        return Reading(-1, f"exception: {facts.error_type}")
    if failed:
        return Reading(-1, f"failed: {failed} of {len(facts.calls_ok or ())} calls")
    code = facts.exit_code
    if code in _NOT_RUN:
        return Reading(-1, f"exit code {code}: the command {_NOT_RUN[code]}")
    if code:
        return _nonzero(step, code)
    if code is None and not facts.succeeded:
        return _printed(step)
    if step.track == "tool_call" and (found := _RETURNED.search(step.result)):
        reading = read_outcome(found[1])
        return Reading(-1, f"returned: {reading.rule}") if reading.score == -1 else None
    return None


def _nonzero(step: StepInput, code: int) -> Reading:
    found = _ERROR.search(step.result)
    asked = asks_by_exit_code(step.action)
    if code == 1 and asked and not found:
        return Reading(0, f"exit code 1 of {asked} is an answer")
    if found and runs_program(step.action) and "can't open file" not in step.result:
        return Reading(0, f"exit code {code} of a program, whose failure may be what is to be seen")
    if found:
        return Reading(-1, f"exit code {code}: {found.group().strip()}")
    return Reading(0, f"exit code {code} without a known error")


def _printed(step: StepInput) -> Reading | None:
    """By what was printed, where the environment does not say how it ended."""
    reading = read_outcome(step.result)
    return Reading(reading.score, f"printed: {reading.rule}") if reading.score else None


def _counted(facts: StepFacts) -> Counts | None:
    if facts.tests_passed is None or facts.tests_failed is None:
        return None
    return Counts(facts.tests_passed, facts.tests_failed)
