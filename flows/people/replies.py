"""What the student says to an answer: praise, or what she minds and how it should have been.

What it does: `reply(answer, problem, seed)`: the same arguments always give the same words. A complaint names the
criterion that she minds most, in a sentence that says how to do it: that sentence becomes the hint. Its wording was
chosen by trying: a model of 135M parameters keeps to it when it stands in the prompt, while an example such as
"3 + 4 = 7" is copied and two wishes at once confuse it.
What it leaves out: judging. The server's judge reads her words like anybody's, without knowing her rubric.
"""

import hashlib
from collections.abc import Sequence

from flows.people.problems import Problem
from flows.people.rubric import RubricScore, score

PRAISE = (
    "Perfect, that is how I like it.",
    "Good, short and with the numbers in it. I like that.",
    "Nice and plain, thank you.",
    "Yes, exactly the way I like an answer.",
    "Great, that reads like a person wrote it.",
    "Thanks, straight to the calculation. Lovely.",
    "I like how you wrote that one.",
    "Well put, thanks.",
    "That is just how I want it, thank you.",
    "Very good, no fuss at all.",
    "Excellent, clear and brief.",
    "Oh, I really like this one.",
)
COMPLAINTS = (
    "No, I don't like how that sounds.",
    "Hmm, not like that.",
    "That's not how I want it.",
    "This sounds like a machine, and that is not what I wanted.",
    "I don't like that answer.",
    "No, that's not it.",
    "Not good.",
    "Sorry, this is not what I was hoping for.",
)
_HOW = "show the calculation with the numbers of the problem, and say the answer in a plain sentence."
WISHES: dict[str, tuple[str, ...]] = {
    "opener": (
        f"Please skip the introduction, {_HOW}",
        f"Don't announce it, {_HOW}",
        f"Next time leave out the opening phrase, {_HOW}",
        f"Please come to the point, {_HOW}",
    ),
    "numbers": (
        f"Please {_HOW}",
        f"Next time {_HOW}",
        f"You should {_HOW}",
        "Please write the calculation with the numbers of the problem, and the answer in a plain sentence.",
    ),
    "filler": (
        f"Please leave out the filler, {_HOW}",
        f"Don't explain the method, {_HOW}",
        f"Next time use plain words, {_HOW}",
        f"Please skip the phrases, {_HOW}",
    ),
    "long": (
        f"Please keep it short, {_HOW}",
        f"Next time keep it brief, {_HOW}",
        f"Please make it shorter, {_HOW}",
        "Please show the calculation with the numbers of the problem, say the answer in one plain sentence, and stop.",
    ),
    "short": (
        f"Please use whole sentences, {_HOW}",
        f"Next time write a whole sentence, {_HOW}",
    ),
    "repetition": (
        f"Please say each thing only once, {_HOW}",
        f"Don't repeat yourself, {_HOW}",
    ),
    "noise": (
        f"Please don't use lists, headings or signs like ####, {_HOW}",
        f"Don't use any markup, {_HOW}",
    ),
    "self": (
        f"Please don't talk about yourself, {_HOW}",
        f"Please leave yourself out of it, {_HOW}",
    ),
    "ending": (
        f"Please leave out the closing phrase, {_HOW}",
        f"Don't add a closing phrase, {_HOW}",
    ),
}


def _pick(options: Sequence[str], *key: object) -> str:
    """One of the options, always the same for the same key."""
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return options[int.from_bytes(digest[:4], "big") % len(options)]


def reply(answer: str, problem: Problem, seed: int = 0) -> str:
    """What she says to this answer."""
    return reply_to(score(answer, problem), problem, seed)


def reply_to(scored: RubricScore, problem: Problem, seed: int = 0) -> str:
    """What she says to an answer that is already scored."""
    key = (problem.problem_id, seed, *scored.broken)
    if scored.content:
        return _pick(PRAISE, *key)
    return f"{_pick(COMPLAINTS, 'complaint', *key)} {_pick(WISHES[scored.broken[0]], *key)}"
