"""One update's mathematics: from samples to gradients, with every number on the way.

What it does: scores teacher (the current weights on the prompt with the hint) and reference (the start weights, only
where β > 0), runs forward and backward, says whether the gradients may be used, and steps.
What it leaves out: the gate, the commit (`train/trainer.py`), minibatches and epochs: there is one
optimiser step a batch, so ℓ_old is stopgrad(ℓ) and costs no extra pass.

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
from train.batch import hinted_sequence, pad, plain_sequence
from train.loss import LossInputs, LossSums, importance_weight, policy_loss
from train.megatron.engine import Engine
from train.settings import TrainSettings

Progress = Callable[[str, int, int], None]  # phase, done, total


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
        self.teacher: dict[int, Tensor] = {}  # [R] by index of the sample
        self.ref: dict[int, Tensor] = {}
        self.scores: dict[int, Score] = {}
        self.totals: Counter[str] = Counter()
        self.fault: str | None = None

    def score(self, engine: Engine, reference: Path, progress: Progress) -> None:
        """Teacher and reference log-probs, without gradient."""
        budget = 2 * self.settings.batch.micro_batch_tokens
        hinted = [index for index, sample in enumerate(self.samples) if sample.hint is not None]
        held = [index for index, sample in enumerate(self.samples) if sample.kl_weight > 0]
        if hinted:
            sequences = [hinted_sequence(self.samples[index]) for index in hinted]
            found = engine.score(sequences, budget, lambda done, total: progress("teacher", done, total))
            self.teacher = dict(zip(hinted, found, strict=True))
        if held:
            sequences = [plain_sequence(self.samples[index]) for index in held]
            with engine.borrow(reference):
                found = engine.score(sequences, budget, lambda done, total: progress("reference", done, total))
            self.ref = dict(zip(held, found, strict=True))

    def loss(self, group: list[int], logp: list[Tensor]) -> tuple[Tensor, int]:
        """The summed loss of one micro-batch; notes scores and sums."""
        samples = [self.samples[index] for index in group]
        old = [logp_R.detach() for logp_R in logp]
        settings = self.settings
        advantages = [
            combined(sample.reward, self.teacher.get(index), old_R, settings.advantages)
            for index, sample, old_R in zip(group, samples, old, strict=True)
        ]
        rollout = [torch.tensor(sample.rollout_logprobs) for sample in samples]
        inputs = LossInputs(
            old_BR=pad(old),
            rollout_BR=pad(rollout),
            advantage_BR=pad(advantages),
            ref_BR=pad([self.ref.get(index, old_R) for index, old_R in zip(group, old, strict=True)]),
            mask_BR=pad([torch.tensor(sample.mask[sample.prompt_length :]) for sample in samples]) > 0,
            kl_weight_B=torch.tensor([sample.kl_weight for sample in samples]),
            loss_weight_B=torch.tensor([sample.loss_weight for sample in samples]),
        )
        found = policy_loss(pad(logp), inputs, settings.loss)
        self._note(found)
        for index, old_R, advantage_R, rollout_R in zip(group, old, advantages, rollout, strict=True):
            self.scores[index] = self._score(index, old_R, advantage_R, rollout_R)
        # a smaller batch pulls less: n / full_batch of a full one
        return found.loss * min(1.0, len(self.samples) / settings.batch.full_batch), found.samples

    def gather(self, engine: Engine) -> None:
        """Bring together what the data-parallel shares noted of their samples."""
        parts = engine.collect((self.scores, self.totals, self.fault))
        self.scores = {index: score for scores, _, _ in parts for index, score in scores.items()}
        self.totals = Counter()
        for _, totals, _ in parts:
            self.totals.update(totals)  # not +: it drops what is negative
        self.fault = next((fault for _, _, fault in parts if fault), None)

    def _note(self, found: LossSums) -> None:
        self.totals.update(found.sums)
        self.totals.update({"loss": float(found.loss.detach()), "samples": found.samples})
        if found.outcome != "ok":
            self.fault = f"{found.outcome}: in the loss of a micro-batch"

    def _score(self, index: int, old_R: Tensor, advantage_R: Tensor, rollout_R: Tensor) -> Score:
        teacher_R, ref_R = self.teacher.get(index), self.ref.get(index)
        weight_R = importance_weight(
            old_R, rollout_R, torch.ones_like(old_R, dtype=torch.bool), self.settings.loss.max_importance
        )
        return Score(
            sample_id=self.samples[index].sample_id,
            update_id=self.update_id,
            logp_old=tuple(old_R.tolist()),
            logp_teacher=None if teacher_R is None else tuple(teacher_R.tolist()),
            logp_ref=None if ref_R is None else tuple(ref_R.tolist()),
            advantage=tuple(advantage_R.tolist()),
            weight=tuple(weight_R.tolist()),
        )

    def metrics(self) -> dict[str, float]:
        """Means over the batch."""
        totals, samples = self.totals, max(1, self.totals["samples"])
        tokens = max(1.0, totals["tokens"])
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        gaps = [float((teacher - torch.tensor(self.scores[i].logp_old)).mean()) for i, teacher in self.teacher.items()]
        return {
            "loss": totals["loss"] / samples,
            "samples": totals["samples"],
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
    learned = Learned()
    sequences = [plain_sequence(sample) for sample in samples]
    budget = settings.batch.micro_batch_tokens
    engine.accumulate(sequences, batch.loss, budget, lambda done, total: progress("learn", done, total))
    batch.gather(engine)
    learned.metrics = {**batch.metrics(), "grad_norm": engine.grad_norm()}
    learned.scores = [batch.scores[index] for index in range(len(samples))]
    learned.fault = batch.fault or _fault(learned.metrics, settings)
    if learned.fault is None:
        engine.step(learning_rate)
        learned.steps += 1
    return learned


def _fault(metrics: dict[str, float], settings: TrainSettings) -> str | None:
    """Why these gradients must not be used, or None."""
    if bad := sorted(name for name, value in metrics.items() if not math.isfinite(value)):
        return f"not finite: {', '.join(bad)}"
    if metrics["grad_norm"] > settings.max_grad_norm:
        return f"exploding norm: {metrics['grad_norm']:.1f}, max_grad_norm is {settings.max_grad_norm}"
    if metrics["drift"] > settings.max_drift:
        return f"drift: mean |ℓ_old - μ| is {metrics['drift']:.3f} nats, max_drift is {settings.max_drift}"
    return None
