"""Actions as plain text, for models that call no tools: one bash block an answer, or the word SUBMIT.

What it does: `parse_plain` (never raises), `plain_text`, its reverse. What it leaves out: how blocks are read, which is
the terminal track's matter.
"""

import re
from dataclasses import replace

from serve.environments.protocol import Action, Call
from serve.environments.terminal import plain

WORD = "SUBMIT"
SUBMIT = re.compile(r"[\W_]*submit[\W_]*", re.IGNORECASE)


def parse_plain(text: str) -> Action:
    """The action of an answer; `fault` says what is wrong with one that can't be read."""
    answer = plain.answer_of(text)
    lines = [line for line in answer.split("\n") if line.strip()]
    if lines and SUBMIT.fullmatch(lines[-1]):
        if "```" not in answer:
            return Action(text=text, calls=(Call(name="submit", arguments={}),))
        return plain.fault(text, plain.BOTH.format(word=WORD), WORD)
    action = plain.parse_plain(text, WORD)
    calls = tuple(Call(name="submit", arguments={}) if call.name == "done" else call for call in action.calls)
    return replace(action, calls=calls)


def plain_text(action: Action) -> str:
    """The plain form of an action with one call; of one without a call, its text."""
    if len(action.calls) == 1 and action.calls[0].name == "submit":
        return WORD
    return plain.plain_text(action)
