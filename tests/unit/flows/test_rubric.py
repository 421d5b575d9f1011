"""The student's taste, criterion by criterion."""

import pytest

from flows.people import CRITERIA, load_problems, score
from flows.people.problems import Problem

PROBLEM = Problem(
    problem_id="p", part="practice", question="Tom has 5 apples and gets 3 more.", working="5 + 3", answer=8
)
LIKED = "Tom has 5 + 3 = 8 apples now."


def test_a_plain_answer_is_liked():
    liked = score(LIKED, PROBLEM)
    assert liked.total == 1.0 and liked.content and liked.right and not liked.broken


@pytest.mark.parametrize(
    ("criterion", "answer"),
    [
        ("opener", f"Certainly! {LIKED}"),
        ("opener", f"Awesome! {LIKED}"),
        ("opener", f"Wunderbar! {LIKED}"),
        ("opener", f"To solve this, add them. {LIKED}"),
        ("opener", f"Here is the answer. {LIKED}"),
        ("opener", f"A classic puzzle. {LIKED}"),
        ("opener", f"**Sure**, {LIKED}"),
        ("filler", f"{LIKED} We need to add them."),
        ("filler", f"{LIKED} Breaking it down is manageable."),
        ("self", f"{LIKED} I added them."),
        ("self", f"{LIKED} As an AI, that is plain."),
        ("short", "5 + 3 = 8"),
        ("long", f"{LIKED} " + " ".join(f"word{i}" for i in range(60)) + "."),
        ("long", "Tom has 5 + 3 = 8 apples, which he"),
        ("numbers", "Tom has many apples now, more than before."),
        ("numbers", "Tom has 8 apples now, it is clear."),
        ("repetition", f"{LIKED} {LIKED}"),
        ("repetition", "Tom has 5 and 3 and 8 and 5 and 3 and 8 and 5 and 3 and 8 and 5 and 3."),
        ("ending", f"{LIKED} I hope this helps."),
        ("ending", f"{LIKED} Let me know."),
        ("ending", f"{LIKED} Any other sums?"),
        ("noise", f"{LIKED}\n#### 8"),
        ("noise", "Tom has \\(5 + 3 = 8\\) apples."),
        ("noise", "**Tom** has 5 + 3 = 8 apples."),
        ("noise", "Steps:\n1. Tom has 5.\n2. He gets 3.\n3. That is 8."),
        ("noise", f"{LIKED} 🎉."),
    ],
)
def test_each_criterion_is_seen(criterion, answer):
    assert criterion in score(answer, PROBLEM).broken


def test_each_broken_criterion_halves_the_total():
    found = score(f"Certainly! {LIKED} I hope this helps.", PROBLEM)
    assert found.total == 0.5 ** len(found.broken) and len(found.broken) >= 2
    assert score("", PROBLEM).total == 0.0 and set(score("", PROBLEM).broken) == set(CRITERIA)


def test_being_right_is_watched_and_not_rewarded():
    wrong = score("Tom has 5 + 3 = 9 apples now.", PROBLEM)
    assert wrong.total == 1.0 and not wrong.right


def test_the_problems_that_ship():
    practice, unseen = load_problems("practice"), load_problems("unseen")
    assert len(practice) >= 36 and len(unseen) == 24 and len(practice) + len(unseen) >= 60
    everything = practice + unseen
    assert len({p.problem_id for p in everything}) == len({p.question for p in everything}) == len(everything)
    for problem in everything:
        assert eval(problem.working, {"__builtins__": {}}) == problem.answer, problem.problem_id
        assert score(f"It is {problem.working} = {problem.answer}, all told.", problem).content, problem.problem_id
