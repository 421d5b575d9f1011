"""Hints that a failed step's result gives by itself: how the action should have been.

What it does: reads suggestions, usage lines, allowed values and schema faults, and makes each a plain instruction.
What it leaves out: guessing. A result that only says what went wrong gives no hint.
"""

import re
from collections.abc import Callable

from judge.parsing import clean_hint

MAX_READ_CHARS = 8_000  # of a result: its end, where faults stand

_Words = Callable[[re.Match[str]], str]
_QUOTE = "['\"`‘“]"
_NAME = r"[^'\"`’”\s?]{1,60}"
_I, _LINES = re.IGNORECASE, re.IGNORECASE | re.MULTILINE
_FORMS: tuple[tuple[re.Pattern[str], _Words], ...] = (
    (
        re.compile(rf"(?:did you mean|(?:maybe|perhaps) you meant)[:\s]+(?:to use\s+)?{_QUOTE}?({_NAME})", _I),
        lambda found: f"Use `{found[1].rstrip('.,;')}` instead.",
    ),
    (
        re.compile(r"most similar (?:commands? (?:is|are)|choices? (?:is|are))\s+(\S{1,60})", _I),
        lambda found: f"Use `{found[1]}` instead.",
    ),
    (
        re.compile(r"^(\S{1,40}): There is no terminal here[^:\n]*: ([^\n]{4,200}?)\.?$", _LINES),
        lambda found: f"Do it without {found[1]}: {found[2]}.",
    ),
    (
        re.compile(r"invalid choice: \S+ \(choose from ([^)\n]{1,200})\)"),
        lambda found: f"Choose one of {found[1]}.",
    ),
    (
        re.compile(r"['\"]([\w.-]{1,60})['\"] is a required property"),
        lambda found: f"Give the argument `{found[1]}`: it is required.",
    ),
    (
        re.compile(r"\bmissing ([\w.-]{1,60} \([^()\n]{1,80}\)(?:, [\w.-]{1,60} \([^()\n]{1,80}\))*)"),
        lambda found: f"Give the arguments that are missing: {found[1]}.",
    ),
    (
        re.compile(
            r"(?:missing|requires?) (?:the )?(?:\d+ )?(?:following |required )*(?:positional |keyword-only )?"
            r"arguments?(?: are required)?:? ([^\n]{1,120})",
            _I,
        ),
        lambda found: f"Give the arguments that are required: {found[1].strip().rstrip('.')}.",
    ),
    (
        re.compile(r"the following arguments are required: ([^\n]{1,120})"),
        lambda found: f"Give the arguments that are required: {found[1].strip()}.",
    ),
    (
        re.compile(r"takes no (['\"][^\n;]{1,80}); known are ([^\n;]{1,200})"),
        lambda found: f"Leave out {found[1]}: known are {found[2].rstrip('.')}.",
    ),
    (
        re.compile(r"(?:^|: )is (\S[^\n]{0,99}?), expected (?:type )?([^\n;]{1,120})", re.MULTILINE),
        lambda found: f"Give {found[2].rstrip('.')}, where {found[1]} was given.",
    ),
    (
        re.compile(r"(\S{1,80}) is not one of (\[[^\]\n]{1,200}\])"),
        lambda found: f"Give one of {found[2]}, not {found[1]}.",
    ),
    (
        re.compile(r"(\S{1,80}) is not of type ['\"](\w+)['\"]"),
        lambda found: f"Give a value of type {found[2]}, where {found[1]} was given.",
    ),
    (
        re.compile(r"\(([^()\n]{1,120}) (?:was|were) unexpected\)"),
        lambda found: f"Leave out the argument {found[1]}: it is not known.",
    ),
    (
        re.compile(r"^[^\S\n]*usage:\s+(\S[^\n]{4,300})", _LINES),
        lambda found: f"Call it in this form: {found[1].strip()}",
    ),
)
# A fault that says what to do, and not only what was wrong.
_DIRECTS = re.compile(
    r"\b(?:use|write|give|put|call|answer|reply|send|must|needs?|needed|expected|should|one of|instead|like this|"
    r"as in|example|there (?:is|are)|known (?:is|are)|takes)\b",
    re.IGNORECASE,
)


def hint_from(result: str, fault: str | None = None) -> str | None:
    """One to three sentences, or None where nothing says how it should have been. A fault that directs comes first."""
    texts = [fault, result[-MAX_READ_CHARS:]] if fault else [result[-MAX_READ_CHARS:]]
    for text in texts:
        for form, words in _FORMS:
            if found := form.search(text):
                return clean_hint(words(found))
    return clean_hint(fault) if fault and _DIRECTS.search(fault) else None
