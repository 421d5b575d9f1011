"""What two screens say about the step between them.

What it does: tells whether the screen changed, by the environment's facts, the accessibility trees and the pictures.
What it leaves out: whether the change is progress, which no rule can see: a changed screen is 0.
"""

from judge.replies import Reading
from judge.steps.actions import is_quiet
from judge.steps.base import StepInput
from judge.steps.facts import StepFacts


def screen_changed(step: StepInput, facts: StepFacts) -> bool | None:
    """Any difference counts; None where nothing says."""
    signs: list[bool] = [] if facts.changed is None else [facts.changed]
    if facts.pixels_changed is not None:
        signs.append(facts.pixels_changed > 0)
    if step.before is not None and step.after is not None:
        if step.before.tree or step.after.tree:
            signs.append(step.before.tree != step.after.tree)
        if facts.pixels_changed is None and step.before.image is not None and step.after.image is not None:
            signs.append(step.before.image != step.after.image)
    return any(signs) if signs else None


def read_screens(step: StepInput, facts: StepFacts) -> Reading | None:
    """Nothing happened on the screen, unless the action may well leave it as it is."""
    changed = screen_changed(step, facts)
    if changed is None:
        return None
    if changed:
        return Reading(0, "the screen changed: no rule sees whether for the better")
    if is_quiet(step.action):
        return Reading(0, "the screen did not change, and need not")
    return Reading(-1, "the screen did not change")
