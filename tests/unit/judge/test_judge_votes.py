"""Counting votes, choosing hints, and the verdict."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge import JudgeInput
from judge.votes import choose_hint, majority, make_verdict, vote
from storage.records import NextState

ITEM = JudgeInput(
    exchange_id="x",
    question="q",
    answer="a",
    next_state=NextState(
        next_state_id="n", exchange_id="x", role="user", content="ok", source_exchange_id=None, arrived_at=0.0
    ),
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([], None), ([1], 1), ([-1], -1), ([0], 0), ([1, 1, -1], 1), ([1, -1], 0), ([1, 0], 0), ([-1, -1, 0], -1),
     ([1, -1, 0], 0), ([1, 1, -1, -1], 0), ([1, 1, -1, -1, 0], 0), ([-1, -1, -1, 1, 1], -1)],
)  # fmt: skip
def test_majority(scores, expected):
    assert majority([vote(score, "") for score in scores]) == expected


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=9))
def test_majority_is_the_same_in_any_order_and_turns_with_the_sign(scores):
    votes = [vote(score, "") for score in scores]
    assert majority(votes) == majority(votes[::-1])
    assert majority([vote(-score, "") for score in scores]) == -majority(votes)


def test_longest_usable_hint_is_chosen():
    hints = ["Be brief.", None, "Start with the number.", "Start with the number, please."]
    assert choose_hint([vote(1, "", h) for h in hints]) == ("Start with the number, please.", "longest")
    assert choose_hint([vote(1, "", "Too short")]) == (None, None)
    assert choose_hint([vote(1, "", "Ten chars.")]) == ("Ten chars.", "longest")
    assert choose_hint([]) == (None, None)


def test_overlap_takes_numbers_from_outside():
    votes = [vote(1, "", "A long hint that is not near."), vote(1, "", "A near hint.")]
    assert choose_hint(votes, "overlap", [0.2, 0.9]) == ("A near hint.", "overlap")
    assert choose_hint(votes, "overlap") == ("A long hint that is not near.", "longest"), "no numbers: said by name"
    with pytest.raises(ValueError, match="one per vote"):
        choose_hint(votes, "overlap", [0.2])


def test_no_valid_vote_is_no_reward_and_says_why():
    verdict = make_verdict(
        ITEM, judge="j/1", prompt_version="p/1", started=time.perf_counter(), errors=["timed out", "timed out"],
        directive=[vote(1, "", "Start with the number.")],
    )  # fmt: skip
    assert verdict.reward is None and verdict.error == "no valid vote: timed out"
    assert verdict.hint == "Start with the number.", "a hint stands without a reward"
    assert (verdict.exchange_id, verdict.next_state_id, verdict.judge) == ("x", "n", "j/1")


def test_vote_text_is_cut():
    assert len(vote(1, "x" * 5000).text) == 2000
