"""The loss against numbers worked by hand, and against a second implementation in plain float64 Python."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from train.batch import pad
from train.loss import LossInputs, importance_weight, policy_loss
from train.settings import LossSettings

SETTINGS = LossSettings()


def inputs(old: list[list[float]], **changes: object) -> LossInputs:
    """Two samples or one, β 0, weight 1, advantage 1, μ = ℓ_old."""
    old_BR = torch.tensor(old, dtype=torch.float64)
    fields: dict = {
        "old_BR": old_BR,
        "rollout_BR": old_BR,
        "advantage_BR": torch.ones_like(old_BR),
        "ref_BR": None,
        "mask_BR": torch.ones_like(old_BR, dtype=torch.bool),
        "kl_weight_B": torch.zeros(len(old), dtype=torch.float64),
        "loss_weight_B": torch.ones(len(old), dtype=torch.float64),
        **changes,
    }
    return LossInputs(**fields)


def logp(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_on_policy_the_gradient_is_minus_the_advantage_over_the_length() -> None:
    ell = logp([[-1.0, -2.0]])
    found = policy_loss(ell, inputs([[-1.0, -2.0]], advantage_BR=torch.tensor([[3.0, -1.0]])), SETTINGS)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(-1.0)  # -(3 - 1) / 2
    assert ell.grad.tolist() == [[-1.5, 0.5]]
    assert found.samples == 1 and found.outcome == "ok" and found.sums["clipped"] == 0


def test_the_clip_is_asymmetric() -> None:
    # ρ = 1.5 and 0.5. A = 1: min(1.5, 1.28) = 1.28 and min(0.5, 0.8) = 0.5. A = -1: -1.5 and -0.8.
    ell = logp([[math.log(1.5), math.log(0.5)], [math.log(1.5), math.log(0.5)]])
    advantage = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    found = policy_loss(ell, inputs([[0.0, 0.0], [0.0, 0.0]], advantage_BR=advantage), SETTINGS)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(-(1.28 + 0.5) / 2 + (1.5 + 0.8) / 2)
    # clipped tokens have no gradient: ρ 1.5 with A 1, and ρ 0.5 with A -1
    assert ell.grad.flatten().tolist() == pytest.approx([0.0, -0.25, 0.75, 0.0])
    assert found.sums["clipped"] == 2


def test_the_importance_weight_is_capped_and_spares_the_kl_term() -> None:
    mask = torch.tensor([[True, True, False]])
    weight = importance_weight(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[-3.0, math.log(2.0), 9.0]]), mask, 2.0)
    assert weight[0].tolist() == pytest.approx([2.0, 0.5, 1.0])
    ell = logp([[-1.0]])
    found = policy_loss(
        ell,
        inputs(
            [[-1.0]],
            rollout_BR=torch.tensor([[-9.0]]),
            ref_BR=torch.tensor([[-1.0 + math.log(2.0)]]),
            kl_weight_B=torch.tensor([0.5]),
        ),
        SETTINGS,
    )
    found.loss.backward()
    k3 = 2.0 - math.log(2.0) - 1.0  # exp(gap) - gap - 1 with gap = log 2
    assert found.loss.item() == pytest.approx(-2.0 + 0.5 * k3)
    assert ell.grad.item() == pytest.approx(-2.0 + 0.5 * (1.0 - 2.0))  # d k3 / dℓ = 1 - exp(gap)


def test_mean_over_tokens_then_over_samples() -> None:
    old = pad([torch.tensor([-1.0]), torch.tensor([-1.0, -1.0, -1.0])])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    found = policy_loss(
        old.clone(),
        inputs(old.tolist(), mask_BR=mask, advantage_BR=torch.tensor([[2.0, 0, 0], [1.0, 1.0, 4.0]])),
        SETTINGS,
    )
    assert found.loss.item() / found.samples == pytest.approx(-(2.0 + 2.0) / 2)  # not -(2+1+1+4)/4


def test_per_sample_beta_and_loss_weight() -> None:
    ref = torch.tensor([[math.log(2.0)], [math.log(2.0)]])
    k3 = 1.0 - math.log(2.0)
    found = policy_loss(
        torch.zeros(2, 1),
        inputs(
            [[0.0], [0.0]],
            ref_BR=ref,
            kl_weight_B=torch.tensor([0.0, 1.0]),
            loss_weight_B=torch.tensor([3.0, 0.5]),
        ),
        SETTINGS,
    )
    assert found.loss.item() == pytest.approx(3.0 * -1.0 + 0.5 * (-1.0 + k3))
    assert found.sums["kl_tokens"] == 1


def test_the_clip_acts_in_the_second_minibatch() -> None:
    """Two steps on one batch, as with two minibatches that share ℓ_old: the second meets ρ ≠ 1, and the clip bites."""
    torch.manual_seed(0)
    weight = torch.randn(8, requires_grad=True)
    token = 3
    old = weight.log_softmax(-1)[token].detach().reshape(1, 1)
    clipped = []
    for _ in range(3):
        ell = weight.log_softmax(-1)[token].reshape(1, 1)
        found = policy_loss(ell, inputs(old.tolist(), advantage_BR=torch.ones(1, 1)), SETTINGS)
        (gradient,) = torch.autograd.grad(found.loss, weight)
        clipped.append((found.sums["clipped"], float(gradient.abs().sum()) > 0))
        weight = (weight - 1.0 * gradient).detach().requires_grad_()
    assert clipped[0] == (0.0, True)  # ρ = 1: inert
    assert clipped[-1] == (1.0, False)  # ρ above 1.28: no gradient any more


def test_padding_may_hold_anything() -> None:
    mask = torch.tensor([[True, False]])
    bad = torch.tensor([[-1.0, math.nan]])
    ell = torch.tensor([[-1.0, math.inf]], requires_grad=True)
    found = policy_loss(
        ell,
        inputs([[-1.0, math.nan]], rollout_BR=bad, advantage_BR=bad * -1, ref_BR=bad, mask_BR=mask,
               kl_weight_B=torch.ones(1)),
        SETTINGS,
    )  # fmt: skip
    found.loss.backward()
    assert found.outcome == "ok" and found.loss.item() == pytest.approx(-1.0)
    assert ell.grad.tolist() == [[-1.0, 0.0]]


def test_bad_batches_have_named_outcomes() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    masked = policy_loss(torch.zeros(2, 3), inputs([[0.0] * 3] * 2, mask_BR=none), SETTINGS)
    assert (masked.outcome, masked.samples, masked.loss.item()) == ("nothing to learn", 0, 0.0)
    empty = policy_loss(torch.zeros(0, 3), inputs([], old_BR=torch.zeros(0, 3), mask_BR=none[:0]), SETTINGS)
    assert (empty.outcome, empty.samples) == ("nothing to learn", 0)
    broken = policy_loss(torch.tensor([[math.nan]]), inputs([[0.0]]), SETTINGS)
    assert broken.outcome == "not finite"
    infinite = policy_loss(torch.tensor([[0.0]]), inputs([[0.0]], rollout_BR=torch.tensor([[math.inf]])), SETTINGS)
    assert infinite.outcome == "not finite"  # in the drift, though the weight is only 0


def by_hand(samples: list[dict]) -> float:
    """The same loss again, token by token in Python floats."""
    total = 0.0
    for sample in samples:
        tokens = []
        for ell, old, mu, ref, a, m in sample["tokens"]:
            if not m:
                continue
            rho = math.exp(ell - old)
            w = min(math.exp(old - mu), 2.0)
            policy = -w * min(rho * a, max(0.8, min(1.28, rho)) * a)
            k3 = math.exp(ref - ell) - (ref - ell) - 1
            tokens.append(policy + sample["beta"] * k3)
        if tokens:
            total += sample["weight"] * sum(tokens) / len(tokens)
    return total


LOGP = st.floats(-6, -0.01)
TOKEN = st.tuples(LOGP, LOGP, LOGP, LOGP, st.floats(-3, 3), st.booleans())
SAMPLE = st.fixed_dictionaries(
    {
        "tokens": st.lists(TOKEN, min_size=1, max_size=6),
        "beta": st.sampled_from([0.0, 0.05, 1.0]),
        "weight": st.floats(0.1, 2.0),
    }
)


def run(samples: list[dict], width: int = 0) -> tuple[float, int]:
    """The loss of these samples, padded to at least `width`."""
    columns = [
        pad([torch.tensor([float(token[i]) for token in s["tokens"]], dtype=torch.float64) for s in samples])
        for i in range(6)
    ]
    extra = max(0, width - columns[0].shape[1])
    ell, old, mu, ref, a, m = (torch.nn.functional.pad(c, (0, extra)) for c in columns)
    found = policy_loss(
        ell,
        LossInputs(
            old_BR=old, rollout_BR=mu, advantage_BR=a, ref_BR=ref, mask_BR=m > 0,
            kl_weight_B=torch.tensor([s["beta"] for s in samples], dtype=torch.float64),
            loss_weight_B=torch.tensor([s["weight"] for s in samples], dtype=torch.float64),
        ),
        SETTINGS,
    )  # fmt: skip
    return found.loss.item(), found.samples


@settings(max_examples=150, deadline=None)
@given(st.lists(SAMPLE, min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 5))
def test_any_padding_order_and_split_adds_up_to_the_same(samples: list[dict], width: int, cut: int) -> None:
    expected = by_hand(samples)
    assert run(samples, width)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert run(samples[::-1])[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    parts = [run(part) for part in (samples[:cut], samples[cut:]) if part]
    assert sum(loss for loss, _ in parts) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert sum(count for _, count in parts) == run(samples)[1]
