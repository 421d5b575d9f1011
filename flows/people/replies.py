"""What the student says to an answer: praise, or what she minds and how it should have been.

What it does: `reply(answer, problem, seed)`: the same arguments always give the same words. A complaint names the one
or two criteria that she minds most, each with a sentence that says how to do it: those sentences become hints.
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
WISHES: dict[str, tuple[str, ...]] = {
    "opener": (
        "Please don't announce what you are going to do, start with the calculation itself.",
        "Please start with the calculation, like 3 + 4 = 7, without any introduction.",
        "Don't open with a stock phrase, begin right with the calculation.",
        "Next time begin with the numbers and skip the introduction.",
    ),
    "numbers": (
        "Please show the calculation with its numbers, like 3 + 4 = 7.",
        "Next time write the calculation out, like 6 * 2 = 12.",
        "You should show the numbers you used in a calculation like 9 - 5 = 4.",
        "Please put the calculation into the answer, like 8 / 2 = 4.",
    ),
    "filler": (
        "Please leave out the filler and just give the calculation and the answer.",
        "Don't explain the method, just calculate and say the answer.",
        "Please skip the phrases and write only the calculation and what it means.",
        "Next time use plain words and no filler, just the calculation and the answer.",
    ),
    "long": (
        "Please keep it to two short sentences.",
        "Next time stop right after the answer, two short sentences are enough.",
        "Please use no more than two short sentences.",
        "Keep it under forty words, please.",
    ),
    "short": (
        "Please answer in a whole sentence with the calculation in it.",
        "Next time write a whole sentence, like 3 + 4 = 7, so there are 7 apples.",
    ),
    "repetition": (
        "Please say each thing only once.",
        "Don't repeat yourself, say it once and stop.",
    ),
    "noise": (
        "Please write plain sentences, without lists, headings or #### signs.",
        "Don't use any markup, just plain sentences.",
    ),
    "self": (
        "Please don't talk about yourself, just about the problem.",
        "Leave yourself out of it and write only about the problem, please.",
    ),
    "ending": (
        "Please stop after the answer, without a closing phrase.",
        "Don't add a closing phrase or a question, just stop after the answer.",
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
    wishes = [_pick(WISHES[name], name, *key) for name in scored.broken[:2]]
    return " ".join([_pick(COMPLAINTS, "complaint", *key), *wishes])
