"""The loss against numbers worked by hand, and against a second implementation in plain float64 numpy."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from train.advantages import combined
from train.batch import pad
from train.loss import (
    LossInputs,
    LossSums,
    batch_outcome,
    importance_weight,
    kl_estimate,
    log_remainder,
    policy_loss,
    top_k_divergence,
)
from train.settings import AdvantageSettings, LossSettings

SETTINGS = LossSettings()
LN2 = math.log(2.0)


def inputs(old: list[list[float]], **changes: object) -> LossInputs:
    """Two samples or one, β 0, weight 1, advantage 1, μ = ℓ_old."""
    old_BR = torch.tensor(old, dtype=torch.float64)
    given: dict = {
        "old_BR": old_BR,
        "rollout_BR": old_BR,
        "advantage_BR": torch.ones_like(old_BR),
        "ref_BR": None,
        "mask_BR": torch.ones_like(old_BR, dtype=torch.bool),
        "kl_weight_B": torch.zeros(len(old), dtype=torch.float64),
        "loss_weight_B": torch.ones(len(old), dtype=torch.float64),
        **changes,
    }
    return LossInputs(**given)


def leaf(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


# --- the policy term ---


def test_on_policy_the_gradient_is_minus_the_advantage_over_the_length() -> None:
    ell = leaf([[-1.0, -2.0]])
    found = policy_loss(ell, inputs([[-1.0, -2.0]], advantage_BR=torch.tensor([[3.0, -1.0]])), SETTINGS)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(-1.0)  # -(3 - 1) / 2
    assert ell.grad.tolist() == [[-1.5, 0.5]]
    assert found.samples == 1 and found.outcome == "ok" and found.sums["clipped"] == 0


def test_the_clip_is_asymmetric() -> None:
    # ρ = 1.5 and 0.5. A = 1: min(1.5, 1.28) = 1.28 and min(0.5, 0.8) = 0.5. A = -3: -4.5 and -2.4.
    ell = leaf([[math.log(1.5), math.log(0.5)], [math.log(1.5), math.log(0.5)]])
    advantage = torch.tensor([[1.0, 1.0], [-3.0, -3.0]])
    found = policy_loss(ell, inputs([[0.0, 0.0], [0.0, 0.0]], advantage_BR=advantage), SETTINGS)
    found.loss.backward()
    assert found.loss.item() == pytest.approx(-(1.28 + 0.5) / 2 + (4.5 + 2.4) / 2)
    # clipped tokens have no gradient: ρ 1.5 with A 1, and ρ 0.5 with A -3
    assert ell.grad.flatten().tolist() == pytest.approx([0.0, -0.25, 2.25, 0.0])
    assert found.sums["clipped"] == 2 and found.sums["ratio"] == pytest.approx(4.0)


def test_the_importance_weight_is_capped_and_spares_the_kl_term() -> None:
    mask = torch.tensor([[True, True, False]])
    weight = importance_weight(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[-3.0, LN2, 9.0]]), mask, 2.0)
    assert weight[0].tolist() == pytest.approx([2.0, 0.5, 1.0])
    ell = leaf([[-1.0]])
    changes = {"rollout_BR": torch.tensor([[-9.0]]), "ref_BR": torch.tensor([[-1.0 + LN2]])}
    found = policy_loss(ell, inputs([[-1.0]], kl_weight_B=torch.tensor([0.5]), **changes), SETTINGS)
    found.loss.backward()
    k3 = 2.0 - LN2 - 1.0  # exp(gap) - gap - 1 with gap = log 2
    assert found.loss.item() == pytest.approx(-2.0 + 0.5 * k3)
    assert ell.grad.item() == pytest.approx(-2.0 + 0.5 * (1.0 - 2.0))  # d k3 / dℓ = 1 - exp(gap)


def test_mean_over_tokens_then_over_samples() -> None:
    old = pad([torch.tensor([-1.0]), torch.tensor([-1.0, -1.0, -1.0])])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    advantage = torch.tensor([[2.0, 0, 0], [1.0, 1.0, 4.0]])
    found = policy_loss(old.clone(), inputs(old.tolist(), mask_BR=mask, advantage_BR=advantage), SETTINGS)
    assert found.loss.item() / found.samples == pytest.approx(-(2.0 + 2.0) / 2)  # not -(2+1+1+4)/4


def test_per_sample_beta_and_loss_weight() -> None:
    changes = {"kl_weight_B": torch.tensor([0.0, 1.0]), "loss_weight_B": torch.tensor([3.0, 0.5])}
    ref = torch.tensor([[LN2], [LN2]])
    found = policy_loss(torch.zeros(2, 1), inputs([[0.0], [0.0]], ref_BR=ref, **changes), SETTINGS)
    assert found.loss.item() == pytest.approx(3.0 * -1.0 + 0.5 * (-1.0 + 1.0 - LN2))
    assert found.sums["kl_tokens"] == 1


def test_the_dual_clip_bounds_what_a_bad_token_can_pull() -> None:
    # ρ 5, A -2: min(-10, -2.56) = -10, bounded by 3·-2 = -6. ρ 2, A -2: -4 is above -6. ρ 5, A 2: clipped to 2.56.
    old, advantage = [[0.0, 0.0, 0.0]], torch.tensor([[-2.0, -2.0, 2.0]])
    ell = leaf([[math.log(5.0), LN2, math.log(5.0)]])
    found = policy_loss(ell, inputs(old, advantage_BR=advantage), LossSettings(dual_clip=3.0))
    found.loss.backward()
    assert found.loss.item() == pytest.approx((6.0 + 4.0 - 2.56) / 3)
    assert ell.grad.flatten().tolist() == pytest.approx([0.0, 4.0 / 3, 0.0])
    assert (found.sums["dual_clipped"], found.sums["clipped"]) == (1, 1)
    free = policy_loss(ell, inputs(old, advantage_BR=advantage), SETTINGS)
    assert free.loss.item() == pytest.approx((10.0 + 4.0 - 2.56) / 3) and free.sums["dual_clipped"] == 0


def test_both_sides_of_the_clip_act_in_the_second_minibatch() -> None:
    """Four samples of one token share two parameters: ℓ of samples 0 and 2 is θ_0, of 1 and 3 it is θ_1."""
    theta = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=0.3)
    minibatch = inputs(theta.detach()[:, None].tolist(), advantage_BR=torch.tensor([[1.0], [-1.0]]))  # ℓ_old stays

    first = policy_loss(theta[:, None], minibatch, SETTINGS)
    first.loss.backward()
    assert first.loss.item() == 0.0 and theta.grad.tolist() == [-1.0, 1.0] and first.sums["clipped"] == 0
    optimiser.step()
    optimiser.zero_grad()
    assert theta.tolist() == pytest.approx([-0.7, -2.3])

    # ρ = exp(0.3) = 1.3499 > 1.28 with A = 1, and exp(-0.3) = 0.7408 < 0.8 with A = -1
    second = policy_loss(theta[:, None], minibatch, SETTINGS)
    second.loss.backward()
    assert second.loss.item() == pytest.approx(-1.28 + 0.8)
    assert theta.grad.tolist() == [0.0, 0.0] and second.sums["clipped"] == 2
    # the other way round nothing is clipped: the token goes back
    back = policy_loss(theta[:, None], replace(minibatch, advantage_BR=-minibatch.advantage_BR), SETTINGS)
    back.loss.backward()
    assert theta.grad.tolist() == pytest.approx([1.3498588, -0.7408182]) and back.sums["clipped"] == 0


def test_the_clip_acts_in_later_minibatches_of_a_softmax() -> None:
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


# --- KL, entropy, SFT ---


def test_kl_estimates_by_hand() -> None:
    gap = torch.tensor(LN2)  # ref is twice as sure
    assert kl_estimate(gap, "k1").item() == pytest.approx(-0.693147)
    assert kl_estimate(gap, "k2").item() == pytest.approx(0.2402265)
    assert kl_estimate(gap, "k3").item() == pytest.approx(0.306853)


def test_what_the_kl_estimates_are_in_expectation() -> None:
    """Over a whole vocabulary, weighed by the student: the values, and where their gradients pull."""
    torch.manual_seed(1)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(6, dtype=torch.float64).log_softmax(-1)
    ell = logits.log_softmax(-1)
    p = ell.exp().detach()

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    onto, back = (
        (ell.exp() * (ell - ref)).sum(),
        (ref.exp() * (ref - ell)).sum(),
    )  # KL(student ‖ ref), KL(ref ‖ student)
    expected = {kind: (p * kl_estimate(ref - ell, kind)).sum() for kind in ("k1", "k2", "k3")}
    assert expected["k1"].item() == pytest.approx(onto.item())
    assert expected["k3"].item() == pytest.approx(onto.item())
    assert torch.allclose(gradient(expected["k1"]), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(gradient(expected["k2"]), gradient(onto), atol=1e-12)
    assert torch.allclose(gradient(expected["k3"]), gradient(back), atol=1e-12)


@pytest.mark.parametrize(("kind", "value", "slope"), [("k1", -LN2, 1.0), ("k2", LN2**2 / 2, -LN2), ("k3", 1 - LN2, -1)])
def test_the_kl_term_and_its_gradient(kind: str, value: float, slope: float) -> None:
    ell = leaf([[-1.0]])
    changes = {"ref_BR": torch.tensor([[-1.0 + LN2]]), "advantage_BR": torch.zeros(1, 1)}
    found = policy_loss(ell, inputs([[-1.0]], kl_weight_B=torch.tensor([0.1]), **changes), LossSettings(kl=kind))
    found.loss.backward()
    assert found.loss.item() == pytest.approx(0.1 * value, rel=1e-5)
    assert ell.grad.item() == pytest.approx(0.1 * slope, rel=1e-5)
    assert found.sums["kl_ref"] == pytest.approx(value, rel=1e-5)


def entropy(logits_NV: Tensor) -> Tensor:
    """[N] -Σ p log p, nats."""
    logp_NV = logits_NV.log_softmax(-1)
    return -(logp_NV.exp() * logp_NV).sum(-1)


def test_the_entropy_bonus() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, LN2, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    # uniform over four: log 4. (.2, .4, .2, .2): .6·log 5 + .4·log 2.5
    expected = [math.log(4), 0.6 * math.log(5) + 0.4 * math.log(2.5)]
    assert entropy(logits).tolist() == pytest.approx(expected)
    ell = logits.log_softmax(-1)[:, 0][None]
    given = inputs(ell.tolist(), advantage_BR=torch.zeros(1, 2))
    found = policy_loss(ell, given, LossSettings(entropy_weight=0.1), entropy_BR=entropy(logits)[None])
    assert found.loss.item() == pytest.approx(-0.1 * sum(expected) / 2)
    assert found.sums["entropy"] == pytest.approx(sum(expected))
    (gradient,) = torch.autograd.grad(found.loss, logits)
    assert gradient[0].tolist() == pytest.approx([0.0] * 4)  # as broad as it gets
    # dH/dz_v = -p_v (log p_v + H); the sure token's logit goes down, as its gradient is above 0
    p = np.array([0.2, 0.4, 0.2, 0.2])
    assert gradient[1].tolist() == pytest.approx((0.05 * p * (np.log(p) + expected[1])).tolist())
    measured = policy_loss(ell, given, SETTINGS, entropy_BR=entropy(logits)[None])  # weight 0: only a metric
    assert measured.loss.item() == 0.0 and measured.sums["entropy"] == pytest.approx(sum(expected))


def test_sft_is_the_mean_log_loss_and_looks_at_nothing_else() -> None:
    ell = leaf([[-1.0, -3.0, -9.0]])
    nothing = torch.full((1, 3), math.nan)
    given = inputs(
        [[math.nan] * 3], rollout_BR=nothing, advantage_BR=nothing, mask_BR=torch.tensor([[True, True, False]])
    )
    found = policy_loss(ell, given, LossSettings(objective="sft"))
    found.loss.backward()
    assert found.loss.item() == 2.0 and ell.grad.tolist() == [[-0.5, -0.5, 0.0]]
    assert found.outcome == "ok" and found.sums["weight"] == found.sums["advantage"] == 2 and found.sums["drift"] == 0
    held = replace(given, ref_BR=torch.full((1, 3), -1.0), kl_weight_B=torch.tensor([0.5]))
    kl = (math.exp(2.0) - 2.0 - 1.0) / 2  # gaps 0 and 2
    assert policy_loss(ell, held, LossSettings(objective="sft")).loss.item() == pytest.approx(2.0 + 0.5 * kl)


# --- distillation ---

STUDENT, TEACHER = [0.5, 0.375, 0.125], [0.25, 0.25, 0.5]  # the last is the remainder
REVERSE = 0.5 * LN2 + 0.375 * math.log(1.5) + 0.125 * math.log(0.25)
FORWARD = 0.25 * math.log(0.5) + 0.25 * math.log(2 / 3) + 0.5 * math.log(4.0)


def bins(*rows: list[float]) -> Tensor:
    """[1, N, 2] the log-probs without the remainder."""
    return torch.tensor([rows], dtype=torch.float64)[..., :2].log()


def test_top_k_divergence_by_hand() -> None:
    assert top_k_divergence(bins(STUDENT), bins(TEACHER), "reverse").item() == pytest.approx(REVERSE)
    assert top_k_divergence(bins(STUDENT), bins(TEACHER), "forward").item() == pytest.approx(FORWARD)
    assert top_k_divergence(bins(STUDENT), bins(STUDENT), "reverse").item() == 0.0


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_samples_without_a_teacher_get_no_distillation(direction: str) -> None:
    nothing = torch.full((1, 2, 2), math.nan, dtype=torch.float64)
    student = torch.cat([bins(STUDENT, TEACHER), nothing]).requires_grad_()
    given = inputs(
        [[0.0, 0.0]] * 2,
        advantage_BR=torch.zeros(2, 2),
        teacher_topk_BRK=torch.cat([bins(TEACHER, TEACHER), nothing]),
        has_teacher_B=torch.tensor([True, False]),
    )
    options = LossSettings(distill_weight=0.5, distill_direction=direction, distill_top_k=2)
    found = policy_loss(torch.zeros(2, 2), given, options, student_topk_BRK=student)
    found.loss.backward()
    expected = REVERSE if direction == "reverse" else FORWARD
    assert found.outcome == "ok" and found.loss.item() == pytest.approx(0.5 * expected / 2)
    assert found.sums["distill"] == pytest.approx(expected) and found.sums["distill_tokens"] == 2
    assert student.grad[0, 0].abs().min() > 0 and not student.grad[0, 1].any() and not student.grad[1].any()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([0.5, 3.0, 8.0]))
def test_top_k_divergence_is_between_zero_and_the_whole(seed: int, k: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    q, p = (np.exp(z) / np.exp(z).sum() for z in rng.normal(0, scale, (2, 6)))
    top = np.argsort(-p)[:k]
    student, teacher = (torch.tensor(np.log(x[top]))[None, None] for x in (q, p))
    rest = np.argsort(-p)[k:]
    rounding = 1e-12 + 1e-14 / min(p[rest].sum(), q[rest].sum())  # of 1 - Σ, relative to it
    for direction, one, other in (("forward", p, q), ("reverse", q, p)):
        whole = float((one * np.log(one / other)).sum())
        found = top_k_divergence(student, teacher, direction).item()
        assert -rounding <= found <= whole + rounding
        if k == 5:  # the remainder is one token
            assert found == pytest.approx(whole, rel=1e-12, abs=rounding)


@pytest.mark.parametrize("rest", [0.9, 0.6, 0.4, 1e-2, 1e-5, 1e-8, 1e-11])
def test_the_remainder_is_exact(rest: float) -> None:
    held = (1 - rest) / 2
    found = log_remainder(torch.tensor([[[math.log(held)] * 2]], dtype=torch.float64)).item()
    assert found == pytest.approx(math.log(rest), abs=1e-14 + 1e-15 / rest)


def test_the_remainder_keeps_its_digits_at_both_ends() -> None:
    for log_mass, expected in [(-40.0, -math.exp(-40.0)), (-1e-12, math.log(1e-12))]:
        found = log_remainder(torch.tensor([[[log_mass]]], dtype=torch.float64)).item()
        assert found == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_that_hold_everything_have_finite_gradients(direction: str, dtype: torch.dtype) -> None:
    floor = math.log(8 * torch.finfo(dtype).eps)
    peaked = torch.tensor([60.0, 5.0, 0.0, 0.0], dtype=dtype).log_softmax(-1)[:2]
    spread = torch.tensor([1.0, 0.5, 0.0, 0.0], dtype=dtype).log_softmax(-1)[:2]
    above = torch.tensor([0.5, 0.5], dtype=dtype).log() + 4 * torch.finfo(dtype).eps  # adds up to more than 1
    for one, other in [(peaked, spread), (spread, peaked), (peaked, peaked), (above, spread), (spread, above)]:
        student = one.clone()[None, None].requires_grad_()
        found = top_k_divergence(student, other[None, None], direction)
        found.sum().backward()
        assert torch.isfinite(found).all() and torch.isfinite(student.grad).all()
        assert found.item() > -1e-6
    for full in (peaked, above):
        assert log_remainder(full[None, None]).item() == pytest.approx(floor, rel=1e-2)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_gradcheck_of_top_k_divergence(direction: str) -> None:
    torch.manual_seed(2)
    student, teacher = (
        torch.randn(2, 3, 7, dtype=torch.float64).log_softmax(-1)[..., :4].requires_grad_() for _ in range(2)
    )
    assert torch.autograd.gradcheck(lambda s, t: top_k_divergence(s, t, direction), (student, teacher))


def test_gradients_of_float32_are_those_of_float64() -> None:
    torch.manual_seed(3)
    logits = 4 * torch.randn(1, 200, 50, dtype=torch.float64)
    teacher = (logits + torch.randn_like(logits)).log_softmax(-1)
    top = teacher.topk(20, -1).indices
    for direction in ("forward", "reverse"):
        gradients = []
        for dtype in (torch.float32, torch.float64):
            z = logits.clone().to(dtype).requires_grad_()
            student = z.log_softmax(-1).gather(-1, top)
            top_k_divergence(student, teacher.to(dtype).gather(-1, top), direction).mean().backward()
            gradients.append(z.grad.double())
        assert torch.allclose(*gradients, atol=1e-6)


# --- outcomes ---


def masked(count: int) -> LossSums:
    """A micro-batch of `count` samples in which no token trains, and which holds nothing but NaN."""
    nothing = [[math.nan] * 3] * count
    given = inputs(
        nothing,
        old_BR=torch.full((count, 3), math.nan),
        rollout_BR=torch.full((count, 3), math.nan),
        advantage_BR=torch.full((count, 3), math.nan),
        mask_BR=torch.zeros(count, 3, dtype=torch.bool),
    )
    ell = torch.full((count, 3), math.nan, requires_grad=True)
    found = policy_loss(ell, given, SETTINGS)
    found.loss.backward()
    assert not ell.grad.any()
    return found


def one(advantage: float, options: LossSettings = SETTINGS, **changes: object) -> LossSums:
    entropy_BR = torch.ones(1, 2) if options.entropy_weight else None
    given = inputs([[-1.0, -1.0]], advantage_BR=torch.full((1, 2), advantage), **changes)
    return policy_loss(torch.full((1, 2), -1.0), given, options, entropy_BR=entropy_BR)


def outcome(*parts: LossSums) -> str:
    """As a caller asks it of a whole batch."""
    totals: Counter[str] = Counter()
    for part in parts:
        totals.update(part.sums)
        totals.update({"loss": float(part.loss.detach()), "samples": part.samples})
    return batch_outcome(totals)


def test_bad_batches_have_named_outcomes() -> None:
    assert (masked(2).outcome, masked(2).samples, masked(2).loss.item()) == ("ok", 0, 0.0)
    assert (masked(0).outcome, masked(0).samples, masked(0).loss.item()) == ("ok", 0, 0.0)
    assert outcome() == outcome(masked(0)) == "empty"
    assert outcome(masked(2), masked(1)) == "all masked"
    assert outcome(one(0.0), masked(1)) == "nothing to learn"
    assert outcome(one(1.0)) == outcome(one(0.0), one(1.0), masked(2)) == "ok"
    broken = policy_loss(torch.tensor([[math.nan]]), inputs([[0.0]]), SETTINGS)
    assert broken.outcome == outcome(one(1.0), broken) == "not finite"
    infinite = policy_loss(torch.tensor([[0.0]]), inputs([[0.0]], rollout_BR=torch.tensor([[math.inf]])), SETTINGS)
    assert infinite.outcome == outcome(infinite) == "not finite"  # in the drift, though the weight is only 0
    overflow = policy_loss(torch.tensor([[0.0]]), inputs([[-800.0]]), SETTINGS)
    assert overflow.outcome == "not finite"  # in the ratio, though the clip makes it 1.28


def test_equal_advantages_teach_unless_they_are_zero_and_nothing_else_is_on() -> None:
    assert outcome(one(1.0), one(1.0)) == outcome(one(-1.0)) == "ok"  # there is no baseline
    assert outcome(one(0.0), one(0.0)) == "nothing to learn"
    assert outcome(one(1.0, loss_weight_B=torch.zeros(1))) == "nothing to learn"
    held = {"kl_weight_B": torch.tensor([0.1]), "ref_BR": torch.full((1, 2), -2.0)}
    assert outcome(one(0.0, **held)) == "ok"
    assert outcome(one(0.0, LossSettings(entropy_weight=0.1))) == "ok"
    assert outcome(one(0.0, LossSettings(objective="sft"))) == "ok"
    given = inputs([[0.0]], advantage_BR=torch.zeros(1, 1), has_teacher_B=torch.tensor([True]))
    given = replace(given, teacher_topk_BRK=bins(TEACHER))
    for weight, expected in ((0.0, "nothing to learn"), (0.5, "ok")):
        options = LossSettings(distill_weight=weight, distill_top_k=2)
        assert outcome(policy_loss(torch.zeros(1, 1), given, options, student_topk_BRK=bins(STUDENT))) == expected


def test_a_term_that_is_on_must_be_given_what_it_needs() -> None:
    given, ell = inputs([[0.0]]), torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"entropy_weight is 0\.1"):
        policy_loss(ell, given, LossSettings(entropy_weight=0.1))
    on = LossSettings(distill_weight=0.1, distill_top_k=2)
    for taught in (None, torch.tensor([True])):
        with pytest.raises(ValueError, match=r"distill_weight is 0\.1"):
            policy_loss(ell, replace(given, has_teacher_B=taught), on)
    assert policy_loss(ell, replace(given, has_teacher_B=torch.tensor([False])), on).outcome == "ok"
    taught = replace(given, has_teacher_B=torch.tensor([True]), teacher_topk_BRK=bins(TEACHER))
    with pytest.raises(ValueError, match="distill_top_k is 3: only 2"):
        policy_loss(ell, taught, replace(on, distill_top_k=3), student_topk_BRK=bins(STUDENT))
    with pytest.raises(AssertionError, match="no reference"):
        policy_loss(ell, replace(given, kl_weight_B=torch.ones(1)), SETTINGS)


# --- the whole, against a second implementation ---

K = 3
ON = LossSettings(dual_clip=1.6, entropy_weight=0.1, distill_weight=0.5, distill_top_k=K)
OPTIONS = [
    LossSettings(distill_top_k=K),
    ON,
    replace(ON, kl="k1", distill_direction="forward"),
    replace(ON, kl="k2", distill_top_k=2),
    replace(ON, objective="sft", clip_low=0.1, max_importance=1.1),
]


@dataclass(frozen=True)
class Numbers:
    """One sample in numpy; R tokens, V = 5 tokens in the vocabulary, the teacher's most likely first."""

    ell: np.ndarray
    old: np.ndarray
    mu: np.ndarray
    ref: np.ndarray
    advantage: np.ndarray
    mask: np.ndarray
    student: np.ndarray  # [R, V] probabilities
    teacher: np.ndarray
    taught: bool
    beta: float
    weight: float

    @property
    def entropy(self) -> np.ndarray:
        return -(self.student * np.log(self.student)).sum(-1)


def numbers(rng: np.random.Generator, length: int) -> Numbers:
    old = rng.uniform(-4, -0.1, length)
    z = rng.normal(0, 1.5, (2, length, 5))
    student, teacher = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    order = np.argsort(-teacher, -1)
    return Numbers(
        ell=old + rng.uniform(-0.7, 0.7, length),
        old=old,
        mu=old + rng.uniform(-1, 1, length),
        ref=old + rng.uniform(-1, 1, length),
        advantage=rng.choice([-1.0, 1.0, 0.0, -2.5, 0.3], length),
        mask=rng.random(length) < 0.8,
        student=np.take_along_axis(student, order, -1),
        teacher=np.take_along_axis(teacher, order, -1),
        taught=bool(rng.random() < 0.6),
        beta=float(rng.choice([0.0, 0.05, 1.0])),
        weight=float(rng.uniform(0.1, 2.0)),
    )


def token_by_hand(s: Numbers, t: int, options: LossSettings) -> float:
    """The loss of one token, in Python floats."""
    rho, a, k = math.exp(s.ell[t] - s.old[t]), s.advantage[t], options.distill_top_k
    gain = min(rho * a, max(1 - options.clip_low, min(1 + options.clip_high, rho)) * a)
    if options.dual_clip is not None and a < 0:
        gain = max(gain, options.dual_clip * a)
    total = -min(math.exp(s.old[t] - s.mu[t]), options.max_importance) * gain
    if options.objective == "sft":
        total = -s.ell[t]
    r = math.exp(s.ref[t] - s.ell[t])
    total += s.beta * {"k1": -math.log(r), "k2": math.log(r) ** 2 / 2, "k3": r - 1 - math.log(r)}[options.kl]
    total -= options.entropy_weight * s.entropy[t]
    if s.taught:
        q, p = ([*x[t, :k], x[t, k:].sum()] for x in (s.student, s.teacher))
        if options.distill_direction == "forward":
            p, q = q, p
        total += options.distill_weight * sum(x * math.log(x / y) for x, y in zip(q, p, strict=True))
    return total


def by_hand(samples: Sequence[Numbers], options: LossSettings) -> float:
    total = 0.0
    for s in samples:
        tokens = [token_by_hand(s, t, options) for t in range(len(s.ell)) if s.mask[t]]
        total += s.weight * sum(tokens) / max(1, len(tokens))
    return total


Leaves = tuple[Tensor, Tensor, Tensor]  # ℓ, entropy, the student's top K


def collate(
    samples: Sequence[Numbers], width: int = 0, filler: float = 0.0, dtype: torch.dtype = torch.float64
) -> tuple[Leaves, LossInputs]:
    """Padded to at least `width`; `filler` stands wherever nothing should be read."""
    width = max(width, *(len(s.ell) for s in samples))

    def rows(name: str, keep: Sequence[bool]) -> Tensor:
        shape = getattr(samples[0], name).shape[1:]
        found = torch.full((len(samples), width, *shape), filler, dtype=dtype)
        for row, (s, kept) in enumerate(zip(samples, keep, strict=True)):
            at = torch.tensor(np.flatnonzero(s.mask & kept))
            found[row, at] = torch.tensor(getattr(s, name), dtype=dtype)[at]
        return found

    every, taught = [True] * len(samples), [s.taught for s in samples]
    mask_BR = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, s in enumerate(samples):
        mask_BR[row, : len(s.mask)] = torch.tensor(s.mask)
    leaves = (rows("ell", every), rows("entropy", every), rows("student", taught)[..., :K].log())
    given = LossInputs(
        old_BR=rows("old", every),
        rollout_BR=rows("mu", every),
        advantage_BR=rows("advantage", every),
        ref_BR=rows("ref", [s.beta > 0 for s in samples]),
        mask_BR=mask_BR,
        kl_weight_B=torch.tensor([s.beta for s in samples], dtype=dtype),
        loss_weight_B=torch.tensor([s.weight for s in samples], dtype=dtype),
        teacher_topk_BRK=rows("teacher", taught)[..., :K].log(),
        has_teacher_B=torch.tensor(taught),
    )
    return tuple(x.requires_grad_() for x in leaves), given


def run(leaves: Leaves, given: LossInputs, options: LossSettings) -> LossSums:
    return policy_loss(leaves[0], given, options, entropy_BR=leaves[1], student_topk_BRK=leaves[2])


@dataclass(frozen=True)
class Result:
    """Of a batch, whichever way it was cut."""

    loss: float
    sums: Counter[str]
    gradients: list[np.ndarray]  # per sample: [R, 1 + 1 + K]


def learn(samples: Sequence[Numbers], options: LossSettings, **how: object) -> Result:
    leaves, given = collate(samples, **how)
    found = run(leaves, given, options)
    assert found.outcome == "ok"
    zeros = [torch.zeros_like(x) for x in leaves]
    slopes = torch.autograd.grad(found.loss, leaves, allow_unused=True)
    ell, broad, top = (zero if slope is None else slope for slope, zero in zip(slopes, zeros, strict=True))
    together = torch.cat([ell[..., None], broad[..., None], top], -1).double().numpy()
    assert not together[~given.mask_BR.numpy()].any()
    totals = Counter({**found.sums, "samples": found.samples})
    return Result(found.loss.item(), totals, [g[: len(s.ell)] for g, s in zip(together, samples, strict=True)])


def agree(one: Result, other: Result, within: float) -> None:
    assert one.loss == pytest.approx(other.loss, rel=within, abs=within)
    for name in one.sums | other.sums:
        assert one.sums[name] == pytest.approx(other.sums[name], rel=within, abs=within), name
    for first, second in zip(one.gradients, other.gradients, strict=True):
        np.testing.assert_allclose(first, second, rtol=within, atol=within)


SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SEEDS, LENGTHS, st.sampled_from(OPTIONS))
def test_the_loss_is_the_one_worked_token_by_token(seed: int, lengths: list[int], options: LossSettings) -> None:
    rng = np.random.default_rng(seed)
    samples = [numbers(rng, length) for length in lengths]
    assert learn(samples, options).loss == pytest.approx(by_hand(samples, options), rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    LENGTHS,
    st.sampled_from(OPTIONS),
    st.integers(0, 9),
    st.integers(1, 5),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e30]),
    st.sampled_from([(torch.float64, 1e-12), (torch.float32, 1e-6)]),
)
def test_padding_order_and_split_change_nothing(
    seed: int,
    lengths: list[int],
    options: LossSettings,
    width: int,
    cut: int,
    filler: float,
    precision: tuple[torch.dtype, float],
) -> None:
    rng = np.random.default_rng(seed)
    samples = [numbers(rng, length) for length in lengths]
    dtype, within = precision
    whole = learn(samples, options, dtype=dtype)
    agree(whole, learn(samples, options, width=width, filler=filler, dtype=dtype), within)
    turned = learn(samples[::-1], options, filler=filler, dtype=dtype)
    agree(whole, replace(turned, gradients=turned.gradients[::-1]), within)
    parts = [learn(samples[at : at + cut], options, dtype=dtype) for at in range(0, len(samples), cut)]
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part.sums)
    agree(whole, Result(sum(p.loss for p in parts), sums, [g for p in parts for g in p.gradients]), within)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck_of_the_whole_loss(options: LossSettings) -> None:
    rng = np.random.default_rng(5)
    leaves, given = collate([numbers(rng, length) for length in (4, 6, 3)])
    assert torch.autograd.gradcheck(lambda *x: run(x, given, options).loss, leaves)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck_from_the_logits(options: LossSettings) -> None:
    """ℓ, entropy and top K of one distribution, as a trainer makes them."""
    rng = np.random.default_rng(6)
    _, given = collate([numbers(rng, length) for length in (3, 4)])
    logits = torch.tensor(rng.normal(0, 1, (2, 4, 5)), requires_grad=True)
    near = logits.detach().log_softmax(-1)[..., 1]  # ρ beside 1, on both sides of the clip
    given = replace(given, old_BR=near + torch.tensor(rng.uniform(-0.6, 0.6, (2, 4))), rollout_BR=near)

    def loss(z: Tensor) -> Tensor:
        logp = z.log_softmax(-1)
        return run((logp[..., 1], entropy(z), logp[..., :K]), given, options).loss

    assert torch.autograd.gradcheck(loss, (logits,))


# --- every option is felt ---

CHANGES = [
    ("objective", "sft"),
    ("clip_low", 0.4),
    ("clip_high", 0.6),
    ("dual_clip", None),
    ("dual_clip", 8.0),
    ("max_importance", 1.2),
    ("kl", "k1"),
    ("kl", "k2"),
    ("entropy_weight", 0.2),
    ("distill_weight", 0.25),
    ("distill_direction", "forward"),
    ("distill_top_k", 2),
    ("reward_weight", 0.5),
    ("opd_weight", 0.5),
    ("gap_clip", 0.5),
]


def felt(loss_settings: LossSettings, advantage_settings: AdvantageSettings) -> Result:
    """Two samples of three tokens: ρ is 0.7, 1.5 and 6 in both, the first is good, the second bad."""
    rng = np.random.default_rng(7)
    samples = []
    for reward in (1.0, -1.0):
        s = replace(numbers(rng, 3), mask=np.ones(3, dtype=bool), taught=True, beta=0.5, weight=1.0)
        s = replace(s, mu=s.old - 0.5, ell=s.old + np.log([0.7, 1.5, 6.0]), ref=s.old + 0.5)
        teacher_R = torch.tensor(s.old + np.array([-0.4, -0.7, -2.5]) * -reward)
        advantage = combined(reward, teacher_R, torch.tensor(s.old), advantage_settings)
        samples.append(replace(s, advantage=advantage.numpy()))
    return learn(samples, loss_settings)


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_every_option_changes_the_loss_and_the_gradient(name: str, value: object) -> None:
    options, weighing = replace(ON, dual_clip=3.0), AdvantageSettings()
    before = felt(options, weighing)
    if hasattr(options, name):
        options = replace(options, **{name: value})
    else:
        weighing = replace(weighing, **{name: value})
    after = felt(options, weighing)
    assert abs(after.loss - before.loss) > 1e-3
    assert max(np.abs(a - b).max() for a, b in zip(after.gradients, before.gradients, strict=True)) > 1e-3


def test_every_option_is_among_the_changes() -> None:
    known = {field.name for settings in (LossSettings, AdvantageSettings) for field in fields(settings)}
    assert {name for name, _ in CHANGES} == known


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("objective", "ppo", "be one of policy, sft"),
        ("clip_low", 0.0, "lie between 0 and 1"),
        ("clip_low", 1.0, "lie between 0 and 1"),
        ("clip_low", math.nan, "lie between 0 and 1"),
        ("clip_high", 0.0, "be above 0"),
        ("dual_clip", 1.0, "be above 1"),
        ("dual_clip", math.inf, "be above 1"),
        ("max_importance", -1.0, "be above 0"),
        ("kl", "k4", "be one of k1, k2, k3"),
        ("entropy_weight", -0.1, "be 0 or above"),
        ("entropy_weight", math.nan, "be 0 or above"),
        ("distill_weight", math.inf, "be 0 or above"),
        ("distill_direction", "both", "be one of forward, reverse"),
        ("distill_top_k", 0, "be a whole number from 1"),
        ("distill_top_k", 1.5, "be a whole number from 1"),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(name: str, value: object, limit: str) -> None:
    with pytest.raises(ValueError) as caught:
        LossSettings(**{name: value})
    assert str(caught.value).startswith(f"loss.{name} is {value!r}: must {limit}")
