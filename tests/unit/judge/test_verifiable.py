"""Exact checks."""

from decimal import Decimal

import pytest

from judge import JudgeInput, JudgeSettings, make_judge
from judge.verifiable import final_number, is_right
from storage.records import NextState


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("5 + 3 = 8", "8"),
        ("The answer is 8 apples, 3 more than 5.", "8"),
        ("So 8.\n#### 8\nThe answer is: 8", "8"),
        ("It costs $1,250.50 in all.", "1250.50"),
        ("The answer is \\boxed{42}.", "42"),
        ("-7 degrees", "-7"),
        ("10-4 = 6", "6"),
        ("The answer is 5 - 3 = 2.", "2"),
        ("8.", "8"),
    ],
)
def test_final_number(answer, number):
    assert final_number(answer) == Decimal(number)


def test_no_number():
    assert final_number("I don't know.") is None and not is_right("I don't know.", "3")


def test_equal_numbers_in_other_spelling_and_text():
    assert is_right("8.0 apples", "8") and is_right("1,000", "1000") and not is_right("18", "8")
    assert is_right("The capital is Canberra.", "canberra") and not is_right("Sydney.", "Canberra")


async def test_judge():
    state = NextState(
        next_state_id="n", exchange_id="x", role="user", content="next", source_exchange_id=None, arrived_at=0.0
    )
    judge = make_judge(JudgeSettings(judge="verifiable"))
    for expected, reward in (("8", 1), ("9", -1), (None, None)):
        item = JudgeInput(exchange_id="x", question="q", answer="5 + 3 = 8", next_state=state, expected=expected)
        verdict = await judge.judge(item)
        assert verdict.reward == reward and (verdict.error is None) == (reward is not None)
