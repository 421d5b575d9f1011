"""Advantages, with numbers worked by hand."""

import pytest
import torch

from train.advantages import binary, combined, opd
from train.settings import AdvantageSettings

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0])
TEACHER = torch.tensor([-0.5, -5.0, -0.5, 0.0])  # gaps +0.5, -3, 0, +3


def test_binary_is_the_reward_on_every_token() -> None:
    assert binary(-1, 3).tolist() == [-1.0, -1.0, -1.0]


def test_opd_is_the_clipped_gap() -> None:
    assert opd(TEACHER, OLD, 2.0).tolist() == [0.5, -2.0, 0.0, 2.0]


def test_combined_adds_both_terms() -> None:
    settings = AdvantageSettings(gap_clip=2.0)
    assert combined(1.0, TEACHER, OLD, settings).tolist() == [1.5, -1.0, 1.0, 3.0]


def test_weights_scale_their_terms() -> None:
    settings = AdvantageSettings(gap_clip=2.0, reward_weight=0.5, opd_weight=2.0)
    assert combined(-1.0, TEACHER, OLD, settings).tolist() == [0.5, -4.5, -0.5, 3.5]


def test_a_missing_term_is_left_out() -> None:
    settings = AdvantageSettings(gap_clip=2.0)
    assert combined(-1.0, None, OLD, settings).tolist() == [-1.0] * 4
    assert combined(None, TEACHER, OLD, settings).tolist() == [0.5, -2.0, 0.0, 2.0]
    with pytest.raises(ValueError, match="neither"):
        combined(None, None, OLD, settings)


def test_no_gradient_flows_through_an_advantage() -> None:
    old = OLD.clone().requires_grad_()
    assert not combined(1.0, TEACHER, old, AdvantageSettings()).requires_grad


def test_the_clip_must_be_positive() -> None:
    with pytest.raises(ValueError, match="gap_clip is 0"):
        AdvantageSettings(gap_clip=0)
