"""What the student says, and whether the rules judge understands her."""

import itertools

import pytest

from flows.people import CRITERIA, RubricScore, load_problems, reply
from flows.people.replies import COMPLAINTS, REMARKS, WISHES, reply_to
from judge.replies import read_reply


def _scored(broken: tuple[str, ...]) -> RubricScore:
    return RubricScore(
        total=0.5 ** len(broken), kept={name: name not in broken for name in CRITERIA}, right=True, words=9
    )


def _all_replies() -> dict[str, bool]:
    """Every reply that she gives to any set of broken criteria -> whether she was content."""
    said = {}
    for problem, seed, n in itertools.product(load_problems("practice")[:12], range(2), range(4)):
        for broken in itertools.combinations(CRITERIA, n):
            said[reply_to(_scored(broken), problem, seed)] = not broken
    return said


def test_the_rules_judge_hears_what_she_means():
    said = _all_replies()
    question = load_problems("practice")[0].question
    heard = {text: read_reply(text, question) for text in said}
    right = [t for t, pleased in said.items() if heard[t].score == (1 if pleased else -1)]
    assert len(right) / len(said) >= 0.95
    hinted = [t for t, pleased in said.items() if not pleased and heard[t].hint]
    assert len(hinted) / sum(not pleased for pleased in said.values()) >= 0.95
    assert not [t for t, pleased in said.items() if pleased and heard[t].hint]


def test_the_hint_is_her_wish_and_nothing_else():
    said = read_reply(reply_to(_scored(("opener",)), load_problems("practice")[0]), "")
    assert said.hint in WISHES


def test_her_replies_vary_and_are_the_same_for_the_same_seed():
    problems = load_problems("practice")
    assert len({reply("Certainly!", problem) for problem in problems}) > 20
    assert reply("Certainly!", problems[0], 5) == reply("Certainly!", problems[0], 5)
    assert len({reply("Certainly!", problems[0], seed) for seed in range(10)}) > 3


@pytest.mark.parametrize("remark", [remark for name in CRITERIA for remark in REMARKS[name]])
def test_the_hint_is_the_wish_whatever_she_remarks(remark):
    for wish in WISHES:
        read = read_reply(f"{COMPLAINTS[0]} {remark} {wish}", "")
        assert (read.score, read.hint) == (-1, wish)
