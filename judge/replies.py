"""What a person's reply says about the answer before it.

What it does: finds praise, complaint, re-asking, sarcasm and a new topic in a reply, decides +1, -1 or 0 by the
order below, and takes the hint from the user's own sentences that say how the answer should have been.
What it leaves out: understanding. Replies without any known phrase are 0: they say nothing that a rule can read.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from judge.lexicon import Lexicon, folded, lexicon
from judge.parsing import clean_hint

REASK_SIMILARITY = 0.72  # of letters in order; 1 is the same text
LONG_REPLY_WORDS = 50
MAX_READ_CHARS = 1500  # of a reply; its beginning counts
MAX_REASK_CHARS = 1500
MIN_REASK_CHARS = 12  # a shorter reply is too short to be the question again
_DATE_PREFIX = re.compile(r"^\s*\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d[^\]\n]{0,30}\]\s*")  # some clients put one in front
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\n+")
_QUOTED = re.compile(r'"[^"\n]{1,200}"|[「『«][^」』»]{1,200}[」』»]')
_CODE = re.compile(r"```.*?(?:```|\Z)|^>.*?$", re.DOTALL | re.MULTILINE)
_LEAD = re.compile(
    r"^(?:(?:no|nope|nein|non|não|нет|thanks|thank you|ok(?:ay)?|hm+|danke|merci|gracias|obrigad[oa]|grazie|спасибо|"
    r"but|aber|mais|pero|mas|ma|но|and|so|sorry)\b[\s,;:.!]*)+",
    re.IGNORECASE,
)
# A sentence that only says that it was not right: no direction, although it may hold a directive's words.
_BARE_VERDICT = re.compile(
    r"^(?:(?:that|this|it)(?:'s| is| was)|not) (?:not |really |at all )*(?:how|what|it\b|like)[^,;:]*$|"
    r"^i (?:really )?(?:don't|do not|didn't) (?:like|want|love) (?:that|this|it|how)(?: \w+){0,3}[.!]*$"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule made of a reply."""

    score: int
    rule: str  # the rule's name and the phrase that it found
    hint: str | None = None


def read_reply(reply: str, question: str) -> Reading:
    """The first rule that applies decides."""
    words = lexicon()
    reply = _DATE_PREFIX.sub("", reply[:MAX_READ_CHARS])
    text = folded(_CODE.sub(" ", reply))
    if not text:
        return Reading(0, "nothing said")
    if found := words.find("sarcasm", text):
        return _complaint(words, reply, f"sarcasm: {found.group().strip()}")
    if found := words.find("reask", text):
        return _complaint(words, reply, f"asked again: {found.group().strip()}")
    if is_same_question(text, folded(question)):
        return Reading(-1, "asked again: the same question")
    said = _about_the_answer(words, text)
    rest = words.lists["exempt_approval"].sub(" … ", said)
    if found := words.find("correction", rest):
        return _complaint(words, reply, f"correction: {found.group().strip()}")
    return _without_complaint(words, reply, said, rest)


def _without_complaint(words: Lexicon, reply: str, text: str, rest: str) -> Reading:
    """Praise, praise with a but, a new topic, or nothing."""
    praise = words.find("approval", rest)
    if praise is None and rest != text:
        praise = words.find("exempt_approval", text)
    if praise is None and (found := words.find("wish", rest)):
        return _complaint(words, reply, f"wish: {found.group().strip()}")
    if praise is None:
        found = words.find("topic", folded(reply))
        return Reading(0, f"another topic: {found.group().strip()}" if found else "says nothing about the answer")
    but = words.lists["contrast"].search(rest, praise.end() if praise.string is rest else 0)
    if but and not _clause_after(rest, but.end()).endswith(("?", "？")) and not _praised(words, rest, but.end()):
        return _complaint(words, reply, f"praise with a but: {but.group().strip()}")
    return Reading(1, f"approval: {praise.group().strip()}")


def _praised(words: Lexicon, text: str, start: int) -> bool:
    return words.find("approval", _clause_after(text, start)) is not None


def _clause_after(text: str, start: int) -> str:
    return _SENTENCE.split(text[start:].strip(), maxsplit=1)[0]


def _about_the_answer(words: Lexicon, text: str) -> str:
    """The part of a reply whose words may speak of the answer: without quotations, questions, and anything new.

    A long message is mostly a new task; what people say about the last answer stands at its beginning.
    """
    sentences = [part for part in _SENTENCE.split(_QUOTED.sub('"', text)) if part.strip()]
    if len(text.split()) > LONG_REPLY_WORDS:
        sentences = sentences[:2]
    kept: list[str] = []
    for sentence in sentences:
        if words.find("request", sentence):
            break
        if not (sentence.rstrip().endswith(("?", "？", '?"')) and words.find("question", sentence)):
            kept.append(sentence)
    return " ".join(kept)


def is_same_question(reply: str, question: str) -> bool:
    """Whether the reply asks (nearly) what was asked, in any language."""
    last = next((part for part in reversed(question.split("\n\n")) if part.strip()), "")
    shorter, longer = sorted((len(reply), len(last)))
    if shorter < MIN_REASK_CHARS or longer > MAX_REASK_CHARS or shorter < longer / 2:
        return False
    return SequenceMatcher(None, reply, last, autojunk=False).ratio() >= REASK_SIMILARITY


def _complaint(words: Lexicon, reply: str, rule: str) -> Reading:
    return Reading(-1, rule, hint_from(words, reply))


def hint_from(words: Lexicon, reply: str) -> str | None:
    """The user's sentences that say how it should be, up to three, as one hint; None where there are none."""
    sentences = [part.strip() for part in _SENTENCE.split(_CODE.sub(" ", reply)) if part.strip()]
    chosen = [s for s in sentences if _directs(words, _without_lead(folded(s)))]
    stripped = [_without_lead(s) for s in chosen[:3]]
    return clean_hint(" ".join(s[:1].upper() + s[1:] for s in stripped if s))


def _directs(words: Lexicon, sentence: str) -> bool:
    return words.find("directive", sentence) is not None and not _BARE_VERDICT.match(sentence)


def _without_lead(sentence: str) -> str:
    return _LEAD.sub("", sentence.strip())
