"""What the student likes in an answer: nine criteria, each kept or broken.

What it does: `score(answer, problem)`. Every broken criterion halves the total: 1, 0.5, 0.25, ... She is content only
with 1. The criteria are broad on purpose, so that a model that gives up one pattern for another is seen: any
exclamation in the first sentence counts as an opener, any "I" as self-reference.
What it leaves out of the total: whether the answer is right. That is watched beside it (`right`), because a taste that
pays for a style must not be taken for teaching arithmetic.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from flows.people.problems import Problem
from judge.verifiable import is_right

MIN_WORDS, MAX_WORDS = 5, 45
MIN_DISTINCT_SHARE = 0.8  # of an answer's runs of four words


def _any_of(*parts: str, prefix: str = "") -> re.Pattern[str]:
    return re.compile(f"{prefix}(?:{'|'.join(parts)})", re.IGNORECASE | re.MULTILINE)


_OPENER = _any_of(
    r"certainly|sure|of course|absolutely|definitely|awesome|great|good|excellent|wonderful|fantastic|amazing",
    r"perfect|nice|cool|wow|yay|yes|hello|hi|hey|thanks|thank you|welcome|okay|ok|alright|well|oh|ah|so|now|indeed",
    r"to (?:solve|find|calculate|determine|answer|figure|work|get|compute|understand|know|see|tackle|convert)",
    r"in order to|let'?s|let us|let me|here'?s|here is|here are|this is|what an?\b|one way",
    r"we (?:need|can|have|must|will|are|know)|you (?:are|need|can|want|have|asked)|i |i'|first\b|firstly|step \d",
    r"the (?:problem|question|task|exercise|solution|steps?|key)\b|given|based on|according to|imagine|suppose",
    r"understanding|solving|calculating|(?:a|an) (?:[\w-]+ ){0,3}(?:question|problem|way|challenge|puzzle|addition)\b",
    prefix=r"\A\W*",
)
_FILLER = _any_of(
    r"\bbreak(?:ing)? (?:it|this|that|the \w+)? ?down|step[- ]by[- ]step|manageable|in other words|\bclassic\b",
    r"\b(?:we|you) (?:need|have|want) to\b|\blet'?s\b|\blet us\b|important to (?:note|remember|understand)",
    r"keep in mind|essentially|basically|simply\b|obviously|of course|\bconcept|\bapproach|\bprocess\b|\bmethod\b",
    r"\bformula\b|\bscenario|in this case|as follows|following (?:steps|calculation)|it'?s worth|delve|journey",
    r"to (?:find|solve|calculate|determine)\b|can be (?:represented|expressed|calculated|described|simplified)",
    r"think (?:about|of) (?:it|this)|this is (?:because|exactly)|exciting|fascinating|interesting|amazing|awesome",
)
_SELF = _any_of(
    r"\bI\b(?!\.)|\bI'(?:m|ll|d|ve)\b|\bas an ai\b|\blanguage model\b|\bassistant\b|\bmy (?:name|answer|calculation)\b"
)
_ENDING = _any_of(
    r"hope (?:this|that|it)|let me know|feel free|happy to help|any (?:more |other |further )?questions",
    r"need (?:any )?(?:more |further )?help|good luck|have a (?:nice|great|good)|you'?re welcome|anything else",
    r"glad to|enjoy\b|keep up|\?\W*\Z|!\W*\Z",
)
_NOISE = _any_of(
    r"#{2,}|\*\*|__|\\[a-zA-Z(\[]|\$[^$\n]*\\|^\s*(?:[-*•]|\d+[.)])\s|^#+ |`|^\s*>|<[a-z/|]",
    r"[\U0001F300-\U0001FAFF\u2600-\u27BF]|\bthe answer is:|^\w[\w ]{0,30}:\s*$",
)
_EQUATION = re.compile(
    r"\d[\d.,]*\W{0,3}[a-z%]*\s*(?:[-+*/x×÷−]|times|plus|minus|divided by)\s*\W?\d[\d.,]*[^=\n]{0,40}=\s*\W?\d",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?)\"'\d%]\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricScore:
    """How much she likes one answer."""

    total: float  # 0 to 1: halved by each broken criterion, 0 for an empty answer
    kept: dict[str, bool]  # criterion -> kept
    right: bool  # whether it ends on the right number; no part of the total
    words: int

    @property
    def content(self) -> bool:
        """Whether she has nothing to say against it."""
        return self.total == 1.0

    @property
    def broken(self) -> tuple[str, ...]:
        """The broken criteria, the worst first."""
        return tuple(name for name, kept in self.kept.items() if not kept)


def _words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def _plain_opener(text: str, _: Problem) -> bool:
    return not _OPENER.search(text) and "!" not in _first_sentence(text)


def _no_repetition(text: str, _: Problem) -> bool:
    words = _words(text)
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    lines = [line for line in (part.strip().lower() for part in re.split(r"[.\n]", text)) if len(line) > 12]
    return len(set(lines)) == len(lines) and (not runs or len(set(runs)) / len(runs) >= MIN_DISTINCT_SHARE)


def _shows_numbers(text: str, problem: Problem) -> bool:
    """At least two numbers of the problem's calculation, and a third, which should be the result."""
    wanted = set(re.findall(r"\d+", problem.working))
    found = set(re.findall(r"\d+", text))
    return len(wanted & found) >= min(2, len(wanted)) and len(found) >= 3


# In the order in which she minds them.
CRITERIA: dict[str, Callable[[str, Problem], bool]] = {
    "opener": _plain_opener,
    "numbers": _shows_numbers,
    "filler": lambda text, _: not _FILLER.search(text),
    "long": lambda text, _: len(_words(text)) <= MAX_WORDS and bool(_END.search(text)),
    "short": lambda text, _: len(_words(text)) >= MIN_WORDS,
    "repetition": _no_repetition,
    "noise": lambda text, _: not _NOISE.search(text),
    "self": lambda text, _: not _SELF.search(text),
    "ending": lambda text, _: not _ENDING.search(text.strip()[-120:]),
}


def score(answer: str, problem: Problem) -> RubricScore:
    """How much she likes this answer to this problem."""
    text = answer.strip()
    kept = {name: bool(text) and check(text, problem) for name, check in CRITERIA.items()}
    broken = sum(not value for value in kept.values())
    return RubricScore(
        total=0.5**broken if text else 0.0,
        kept=kept,
        right=is_right(text, str(problem.answer)),
        words=len(_words(text)),
    )
