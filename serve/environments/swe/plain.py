"""Actions as plain text, for models that call no tools: one bash block an answer, or the word SUBMIT.

What it does: `parse_plain` (never raises), `plain_text`, its reverse. What it leaves out: how blocks are read, which is
the terminal track's matter.
"""

import re

from serve.environments.protocol import Action, Call
from serve.environments.terminal import plain

SUBMIT = re.compile(r"[\W_]*submit[\W_]*", re.IGNORECASE)


def parse_plain(text: str) -> Action:
    """The action of an answer; `fault` says what is wrong with one that can't be read."""
    answer = text
    if text.lstrip().startswith("<think>") and "</think>" in text:
        answer = text.partition("</think>")[2]
    lines = [line for line in answer.split("\n") if line.strip()]
    if lines and SUBMIT.fullmatch(lines[-1]):
        if "```" not in answer:
            return Action(text=text, calls=(Call(name="submit", arguments={}),))
        both = "The answer has both a block and SUBMIT: look at what the command gives, and say SUBMIT after it."
        return Action(text=text, fault=f"{both} {plain.RIGHT.replace('DONE', 'SUBMIT')}")
    action = plain.parse_plain(text)
    if action.fault:
        return Action(text=text, fault=action.fault.replace("DONE", "SUBMIT"))
    calls = tuple(Call(name="submit", arguments={}) if call.name == "done" else call for call in action.calls)
    return Action(text=text, calls=calls)


def plain_text(action: Action) -> str:
    """The plain form of an action with one call; of one without a call, its text."""
    if len(action.calls) == 1 and action.calls[0].name == "submit":
        return "SUBMIT"
    return plain.plain_text(action)
