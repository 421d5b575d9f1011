"""What the student says to an answer: praise, or what she minds and how it should have been.

What it does: `reply(answer, problem, seed)`: the same arguments always give the same words. A complaint names the
criterion that she minds most and ends with a sentence that says how to do it: that sentence becomes the hint. Its
wording was chosen by trying: of seven it was the one that a model of 135M parameters kept to best when it stood in the
prompt. An example such as "3 + 4 = 7" was copied, and "short sentences" lost the numbers.
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
    "No, this sounds like a machine.",
    "I don't like that answer.",
    "No, that's not it.",
    "Not good.",
    "Sorry, this is not what I was hoping for.",
)
# What she minds, in words that blame and direct nothing: the direction is her wish.
REMARKS: dict[str, tuple[str, ...]] = {
    "opener": (
        "That opening sounds like a machine.",
        "What a long run-up before anything happens.",
        "The first words are a stock phrase.",
        "That start is an announcement and no answer.",
    ),
    "numbers": (
        "The numbers of the problem are hard to find in there.",
        "Where did the numbers go?",
        "The sum itself is missing.",
    ),
    "filler": (
        "That is mostly filler.",
        "So many phrases for a small sum.",
        "It reads like a manual.",
        "Half of those words say nothing.",
    ),
    "long": (
        "It goes on and on.",
        "That is far too long.",
        "My tea got cold while reading it.",
        "So many words.",
    ),
    "short": ("That is a bare scrap of an answer.", "A bit too short for me."),
    "repetition": ("The same thing twice.", "It goes round in circles."),
    "noise": ("All those signs look like a printout.", "It looks like a form and reads like one."),
    "self": ("It talks about itself.", "The speaker is no part of the problem."),
    "ending": ("That last phrase is from a call centre.", "The goodbye at the end is empty talk."),
}
WISHES = (
    "Please show the calculation with the numbers of the problem, and say the answer in a plain sentence.",
    "Next time show the calculation with the numbers of the problem, and say the answer in a plain sentence.",
    "You should show the calculation with the numbers of the problem, and say the answer in a plain sentence.",
    "Show the calculation with the numbers of the problem, and say the answer in a plain sentence, please.",
    "Just show the calculation with the numbers of the problem, and say the answer in a plain sentence.",
)


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
    remark = _pick(REMARKS[scored.broken[0]], "remark", *key)
    return " ".join((_pick(COMPLAINTS, "complaint", *key), remark, _pick(WISHES, "wish", *key)))
