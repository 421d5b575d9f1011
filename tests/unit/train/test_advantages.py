"""Advantages, with numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.advantages import binary, combined, opd, standardised, step_reward
from train.settings import AdvantageSettings

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0])
TEACHER = torch.tensor([-0.5, -5.0, -0.5, 0.0])  # gaps +0.5, -3, 0, +3


def test_binary_is_the_reward_on_every_token() -> None:
    assert binary(-1, 3).tolist() == [-1.0, -1.0, -1.0]


def test_opd_is_the_clipped_gap() -> None:
    assert opd(TEACHER, OLD, 2.0).tolist() == [0.5, -2.0, 0.0, 2.0]
    assert opd(TEACHER, OLD, 0.25).tolist() == [0.25, -0.25, 0.0, 0.25]
    assert opd(TEACHER, OLD, 9.0).tolist() == [0.5, -3.0, 0.0, 3.0]


def test_combined_adds_both_terms() -> None:
    settings = AdvantageSettings(gap_clip=2.0)
    assert combined(1.0, TEACHER, OLD, settings).tolist() == [1.5, -1.0, 1.0, 3.0]


def test_weights_scale_their_terms() -> None:
    settings = AdvantageSettings(gap_clip=2.0, reward_weight=0.5, opd_weight=2.0)
    assert combined(-1.0, TEACHER, OLD, settings).tolist() == [0.5, -4.5, -0.5, 3.5]


def test_a_missing_term_is_left_out() -> None:
    settings = AdvantageSettings(gap_clip=2.0, reward_weight=0.5, opd_weight=2.0)
    assert combined(-1.0, None, OLD, settings).tolist() == [-0.5] * 4
    assert combined(None, TEACHER, OLD, settings).tolist() == [1.0, -4.0, 0.0, 4.0]
    with pytest.raises(ValueError, match="neither"):
        combined(None, None, OLD, settings)


def test_no_gradient_flows_through_an_advantage() -> None:
    old = OLD.clone().requires_grad_()
    assert not combined(1.0, TEACHER, old, AdvantageSettings()).requires_grad


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("gap_clip", 0, "be above 0 nats"),
        ("gap_clip", math.nan, "be above 0 nats"),
        ("reward_weight", -1.0, "be 0 or above"),
        ("reward_weight", math.inf, "be 0 or above"),
        ("opd_weight", math.nan, "be 0 or above"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(name: str, value: float, limit: str) -> None:
    with pytest.raises(ValueError, match=rf"^advantages\.{name} is {value!r}: must {limit}"):
        AdvantageSettings(**{name: value})


def test_a_steps_reward_is_the_outcome_and_its_mean_vote() -> None:
    assert step_reward(1.0, [1, 0, -1, 1]) == 1.25
    assert step_reward(-1.0, [1]) == 0.0
    assert step_reward(0.5, []) == 0.5  # the outcome only


def test_rewards_are_standardised_over_steps_of_one_index_in_one_group() -> None:
    keys = [("task", 0), ("task", 1), ("task", 0), ("other", 0), ("task", 1), ("task", 0)]
    # (task, 0): 1, 2, 6: mean 3, variance (4 + 1 + 9) / 3. (task, 1): 5 and -1: mean 2, std 3. (other, 0): alone.
    found = standardised([1.0, 5.0, 2.0, 9.0, -1.0, 6.0], keys)
    std = math.sqrt(14 / 3)
    assert found == pytest.approx([-2 / std, 1.0, -1 / std, None, -1.0, 3 / std])


def test_groups_that_say_nothing_are_dropped() -> None:
    assert standardised([], []) == []
    assert standardised([1.0], ["a"]) == [None]
    assert standardised([0.1] * 3, ["a"] * 3) == [None] * 3
    assert standardised([1.0, 1.0 + 1.9e-6], ["a", "a"]) == [None, None]  # std 0.95e-6
    assert standardised([1.0, 1.0 + 2.1e-6], ["a", "a"]) == pytest.approx([-1.0, 1.0])  # std 1.05e-6


def test_rewards_must_be_finite_and_keyed() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=f"reward 1 is {bad}: must be finite"):
            standardised([0.0, bad], ["a", "b"])
    with pytest.raises(ValueError, match="2 rewards and 1 keys"):
        standardised([0.0, 1.0], ["a"])


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 3)), max_size=30), st.randoms())
def test_standardised_is_numpys_and_order_does_not_matter(pairs: list[tuple[float, int]], random) -> None:
    rewards, keys = [r for r, _ in pairs], [("g", k) for _, k in pairs]
    found = standardised(rewards, keys)
    for key in set(keys):
        own = np.array([r for r, k in zip(rewards, keys, strict=True) if k == key])
        got = [a for a, k in zip(found, keys, strict=True) if k == key]
        if abs(own.std() - 1e-6) < 1e-12:
            continue
        if len(own) < 2 or own.std() < 1e-6:
            assert got == [None] * len(own)
        else:
            assert got == pytest.approx(((own - own.mean()) / own.std()).tolist(), rel=1e-6, abs=1e-8)
    order = list(range(len(pairs)))
    random.shuffle(order)
    again = standardised([rewards[i] for i in order], [keys[i] for i in order])
    assert again == [found[i] for i in order]  # to the last bit
