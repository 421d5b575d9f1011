"""One update's mathematics: from samples to gradients, with every number on the way.

What it does: scores teacher (the current weights on the prompt with the hint) and reference (the start weights, only
where β > 0), runs forward and backward, says whether the gradients may be used, and steps.
With one optimiser step a batch, as by default, ℓ_old is stopgrad(ℓ) and costs no extra pass.
What it leaves out: the gate, the commit (`train/trainer.py`).

Axes: B = samples of a micro-batch, R = response tokens.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from storage.records import Sample, Score
from train.advantages import combined
from train.batch import TokenScores, Wanted, hinted_sequence, pad, plain_sequence, step_rewards
from train.loss import LossInputs, LossSums, Outcome, batch_outcome, importance_weight, policy_loss
from train.megatron.engine import Engine
from train.settings import TrainSettings

Progress = Callable[[str, int, int], None]  # phase, done, total
TEACHES_NOTHING = ("empty", "all masked", "nothing to learn")


@dataclass(slots=True, kw_only=True)
class Learned:
    """What a forward and backward pass over the batch gave."""

    scores: list[Score] = field(default_factory=list)  # in the samples' order
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0  # of the optimiser, taken before the fault if there is one
    fault: str | None = None  # why the gradients must not be used


class Batch:
    """The samples of one update and what is known of each: filled by `score`, used by `loss`."""

    def __init__(self, samples: Sequence[Sample], settings: TrainSettings, update_id: str) -> None:
        self.samples = samples
        self.settings = settings
        self.update_id = update_id
        self.sequences = [plain_sequence(sample) for sample in samples]
        self.rewards = step_rewards(samples)
        self.old: dict[int, Tensor] = {}  # [R] by index of the sample; only where several steps share it
        self.teacher: dict[int, TokenScores] = {}
        self.ref: dict[int, Tensor] = {}
        self.scores: dict[int, Score] = {}
        self.totals: Counter[str] = Counter()  # of all steps
        self.step_totals: Counter[str] = Counter()  # of this one

    def score(self, engine: Engine, reference: Path, progress: Progress) -> None:
        """Teacher, reference and, for several steps, ℓ_old: without gradient."""
        budget = 2 * self.settings.batch.micro_batch_tokens
        loss = self.settings.loss
        hinted = [index for index, sample in enumerate(self.samples) if sample.hint is not None]
        held = [index for index, sample in enumerate(self.samples) if sample.kl_weight > 0]
        if hinted and loss.objective == "policy":
            sequences = [hinted_sequence(self.samples[index]) for index in hinted]
            wanted = Wanted(top=loss.distill_top_k if loss.distill_weight > 0 else 0)
            found = engine.score_more(sequences, wanted, budget, lambda done, total: progress("teacher", done, total))
            self.teacher = dict(zip(hinted, found, strict=True))
        if held:
            sequences = [self.sequences[index] for index in held]
            with engine.borrow(reference):
                logp = engine.score(sequences, budget, lambda done, total: progress("reference", done, total))
            self.ref = dict(zip(held, logp, strict=True))
        if self.settings.batch.minibatches * self.settings.batch.epochs > 1:
            logp = engine.score(self.sequences, budget, lambda done, total: progress("old", done, total))
            self.old = dict(enumerate(logp))

    def accumulate(self, engine: Engine, part: Sequence[int], progress: Progress) -> None:
        """Forward and backward over some of the samples."""
        self.step_totals = Counter()
        loss = self.settings.loss
        wanted = Wanted(entropy=loss.entropy_weight > 0, of=self._top_ids(part) if self._distils() else None)
        engine.accumulate(
            [self.sequences[index] for index in part],
            lambda group, found: self.loss([part[index] for index in group], found),
            self.settings.batch.micro_batch_tokens,
            lambda done, total: progress("learn", done, total),
            wanted,
        )
        self._gather(engine)

    def _distils(self) -> bool:
        return self.settings.loss.distill_weight > 0 and bool(self.teacher)

    def _top_ids(self, part: Sequence[int]) -> list[Tensor]:
        """[R, K] the teacher's choice for each sample; any ids where there is no teacher."""
        found = []
        for index in part:
            length = len(self.sequences[index].response_ids)
            none = torch.zeros((length, self.settings.loss.distill_top_k), dtype=torch.int64)
            teacher = self.teacher.get(index)
            found.append(none if teacher is None or teacher.top_ids is None else teacher.top_ids)
        return found

    def loss(self, group: list[int], found: list[TokenScores]) -> tuple[Tensor, int]:
        """The summed loss of one micro-batch; notes scores and sums."""
        settings = self.settings
        samples = [self.samples[index] for index in group]
        old = [self.old.get(index, scores.logp.detach()) for index, scores in zip(group, found, strict=True)]
        advantages = [self._advantage(index, old_R) for index, old_R in zip(group, old, strict=True)]
        rollout = [torch.tensor(sample.rollout_logprobs) for sample in samples]
        teachers = [self.teacher.get(index) for index in group]
        inputs = LossInputs(
            old_BR=pad(old),
            rollout_BR=pad(rollout),
            advantage_BR=pad(advantages),
            ref_BR=pad([self.ref.get(index, old_R) for index, old_R in zip(group, old, strict=True)]),
            mask_BR=pad([torch.tensor(sample.mask[sample.prompt_length :]) for sample in samples]) > 0,
            kl_weight_B=torch.tensor([sample.kl_weight for sample in samples]),
            loss_weight_B=torch.tensor([sample.loss_weight for sample in samples]),
            teacher_topk_BRK=pad([_teacher_top(*pair) for pair in zip(teachers, found, strict=True)])
            if self._distils()
            else None,
            has_teacher_B=torch.tensor([teacher is not None for teacher in teachers]),
        )
        sums = policy_loss(
            pad([scores.logp for scores in found]),
            inputs,
            settings.loss,
            entropy_BR=pad([scores.entropy for scores in found]) if settings.loss.entropy_weight > 0 else None,
            student_topk_BRK=pad([scores.top for scores in found]) if self._distils() else None,
        )
        self._note(sums)
        for index, old_R, advantage_R, rollout_R in zip(group, old, advantages, rollout, strict=True):
            self.scores.setdefault(index, self._score(index, old_R, advantage_R, rollout_R))
        # a smaller batch pulls less: n / full_batch of a full one
        return sums.loss * min(1.0, len(self.samples) / settings.batch.full_batch), sums.samples

    def _advantage(self, index: int, old_R: Tensor) -> Tensor:
        if self.settings.loss.objective == "sft":
            return torch.ones_like(old_R)
        teacher = self.teacher.get(index)
        return combined(self.rewards[index], teacher and teacher.logp, old_R, self.settings.advantages)

    def _gather(self, engine: Engine) -> None:
        """Bring together what the data-parallel shares noted of their samples."""
        parts = engine.collect((self.scores, self.step_totals))
        self.step_totals = Counter()
        for scores, totals in parts:
            self.scores.update(scores)
            self.step_totals.update(totals)  # not +: it drops what is negative
        self.totals.update(self.step_totals)

    def _note(self, found: LossSums) -> None:
        self.step_totals.update(found.sums)
        self.step_totals.update({"loss": float(found.loss.detach()), "samples": found.samples})

    def _score(self, index: int, old_R: Tensor, advantage_R: Tensor, rollout_R: Tensor) -> Score:
        teacher, ref_R = self.teacher.get(index), self.ref.get(index)
        weight_R = torch.ones_like(old_R)
        if self.settings.loss.objective == "policy":
            every_R = torch.ones_like(old_R, dtype=torch.bool)
            weight_R = importance_weight(old_R, rollout_R, every_R, self.settings.loss.max_importance)
        return Score(
            sample_id=self.samples[index].sample_id,
            update_id=self.update_id,
            logp_old=tuple(old_R.tolist()),
            logp_teacher=None if teacher is None else tuple(teacher.logp.tolist()),
            logp_ref=None if ref_R is None else tuple(ref_R.tolist()),
            advantage=tuple(advantage_R.tolist()),
            weight=tuple(weight_R.tolist()),
        )

    def metrics(self) -> dict[str, float]:
        """Means over the batch."""
        totals, samples = self.totals, max(1, self.totals["samples"])
        tokens = max(1.0, totals["tokens"])
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        gaps = [
            float((teacher.logp - torch.tensor(self.scores[index].logp_old)).mean())
            for index, teacher in self.teacher.items()
            if index in self.scores
        ]
        found = {
            "loss": totals["loss"] / samples,
            "samples": len(self.scores),
            "tokens": totals["tokens"],
            "hints": len(self.teacher),
            "reward": sum(rewards) / max(1, len(rewards)),
            "advantage": totals["advantage"] / tokens,
            "teacher_gap": sum(gaps) / max(1, len(gaps)),
            "kl_ref": totals["kl_ref"] / max(1.0, totals["kl_tokens"]),
            "importance": totals["weight"] / tokens,
            "clipped": totals["clipped"] / tokens,
            "drift": totals["drift"] / tokens,
        }
        if self.settings.loss.dual_clip is not None:
            found["dual_clipped"] = totals["dual_clipped"] / tokens
        if self.settings.loss.entropy_weight > 0:
            found["entropy_policy"] = totals["entropy"] / tokens
        if self._distils():
            found["distill"] = totals["distill"] / max(1.0, totals["distill_tokens"])
        return found


def _teacher_top(teacher: TokenScores | None, student: TokenScores) -> Tensor:
    """[R, K] the teacher's; where there is none the student's, for the shape: it is not looked at."""
    top = (student if teacher is None else teacher).top
    assert top is not None
    return top.detach()


def learn(
    engine: Engine,
    samples: Sequence[Sample],
    reference: Path,
    settings: TrainSettings,
    update_id: str,
    progress: Progress,
    learning_rate: float | None = None,
) -> Learned:
    """The optimiser steps of one update, their scores and metrics. A fault before the first step changes nothing."""
    batch = Batch(samples, settings, update_id)
    batch.score(engine, reference, progress)
    learned, norms = Learned(), []
    minibatches = min(settings.batch.minibatches, len(samples))
    for number in range(minibatches * settings.batch.epochs):
        batch.accumulate(engine, range(number % minibatches, len(samples), minibatches), progress)
        outcome = batch_outcome(batch.step_totals)
        norms.append(engine.grad_norm())
        learned.metrics = {**batch.metrics(), "grad_norm": max(norms)}
        if outcome in TEACHES_NOTHING and minibatches > 1:
            continue  # the other minibatches may well teach
        learned.fault = _fault(outcome, {**learned.metrics, "grad_norm": norms[-1]}, settings)
        if learned.fault is not None:
            break
        engine.step(learning_rate)
        learned.steps += 1
    if learned.fault is None and learned.steps == 0:
        learned.fault = f"{outcome}: in every minibatch"
    learned.scores = [batch.scores[index] for index in sorted(batch.scores)]
    return learned


def _fault(outcome: Outcome, metrics: dict[str, float], settings: TrainSettings) -> str | None:
    """Why these gradients must not be used, or None."""
    if outcome in TEACHES_NOTHING:
        return f"{outcome}: no sample's tokens are to become more or less likely"
    if bad := sorted(name for name, value in metrics.items() if not math.isfinite(value)):
        return f"not finite: {', '.join(bad)}"
    if outcome == "not finite":
        return "not finite: in the loss of a micro-batch"
    if metrics["grad_norm"] > settings.max_grad_norm:
        return f"exploding norm: {metrics['grad_norm']:.1f}, max_grad_norm is {settings.max_grad_norm}"
    if metrics["drift"] > settings.max_drift:
        return f"drift: mean |ℓ_old - μ| is {metrics['drift']:.3f} nats, max_drift is {settings.max_drift}"
    return None
