"""All settings of training, torch-free, so that who only configures it or reads a result does not pay for torch.

The defaults are the laptop profile, measured on SmolLM2-135M. Where the paper differs, its value stands in the comment.
The KL weight β and the loss weight travel with each sample (laptop: β 0.05; paper: 0 personal, 0.01 general).
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal


def _check(setting: str, value: Any, holds: bool, limit: str) -> None:
    """Raise unless the limit holds. Comparisons with NaN never hold, so a NaN never passes."""
    if not holds:
        raise ValueError(f"{setting} is {value!r}: must {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """How reward and teacher are weighed (`train/advantages.py`)."""

    reward_weight: float = 1.0  # w_b
    opd_weight: float = 1.0  # w_o
    gap_clip: float = 2.0  # c, nats: |teacher - student| per token counts up to here (the paper names no value)

    def __post_init__(self) -> None:
        for name in ("reward_weight", "opd_weight"):
            value = getattr(self, name)
            _check(f"advantages.{name}", value, 0 <= value < math.inf, "be 0 or above, and finite")
        _check("advantages.gap_clip", self.gap_clip, self.gap_clip > 0, "be above 0 nats")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The shape of the loss (`train/loss.py`)."""

    objective: Literal["policy", "sft"] = "policy"  # sft: -ℓ on every trained token, for a warm start on good episodes
    clip_low: float = 0.2  # ρ counts down to 1 - clip_low
    clip_high: float = 0.28  # ρ counts up to 1 + clip_high
    dual_clip: float | None = None  # c: where A < 0 the objective counts down to c·A; None has no bound
    max_importance: float = 2.0  # cap of the importance weight exp(ℓ_old - μ)
    kl: Literal["k1", "k2", "k3"] = "k3"  # the estimator of KL(student ‖ start) that each sample's β weighs
    entropy_weight: float = 0.0  # of the bonus for the entropy of the student's whole distribution
    distill_weight: float = 0.0  # of the divergence from the teacher over its top K tokens and the rest
    distill_direction: Literal["forward", "reverse"] = "reverse"  # forward: KL(teacher ‖ student)
    distill_top_k: int = 20  # K

    def __post_init__(self) -> None:
        for name, choices in (
            ("objective", ("policy", "sft")),
            ("kl", ("k1", "k2", "k3")),
            ("distill_direction", ("forward", "reverse")),
        ):
            value = getattr(self, name)
            _check(f"loss.{name}", value, value in choices, f"be one of {', '.join(choices)}")
        _check("loss.clip_low", self.clip_low, 0 < self.clip_low < 1, "lie between 0 and 1")
        for name in ("clip_high", "max_importance"):
            value = getattr(self, name)
            _check(f"loss.{name}", value, value > 0, "be above 0")
        dual = self.dual_clip
        _check("loss.dual_clip", dual, dual is None or 1 < dual < math.inf, "be above 1 and finite, or none")
        for name in ("entropy_weight", "distill_weight"):
            value = getattr(self, name)
            _check(f"loss.{name}", value, 0 <= value < math.inf, "be 0 or above, and finite")
        top = self.distill_top_k
        _check("loss.distill_top_k", top, isinstance(top, int) and top >= 1, "be a whole number from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Which samples train, and how they are packed (`train/batch.py`)."""

    full_batch: int = 16  # samples of a full step; a smaller one has its loss scaled by n / full_batch
    min_samples: int = 4  # fewer do not step
    max_version_lag: int = 8  # head minus the sample's oldest version (paper: 2 in waves)
    max_train_tokens: int = 2048  # prompt + response, with the hint too (paper: 16,384)
    micro_batch_tokens: int = 512  # padded tokens of one forward and backward pass
    minibatches: int = 1  # optimiser steps that a batch is cut into; with more, or more epochs, ℓ_old is frozen first
    epochs: int = 1  # times that a batch is gone through

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= self.full_batch:
            raise ValueError(f"batch.min_samples is {self.min_samples}: must be 1 to full_batch ({self.full_batch})")
        if min(self.max_train_tokens, self.micro_batch_tokens) < 2 or self.max_version_lag < 0:
            raise ValueError(f"{self}: token limits must be at least 2 and max_version_lag at least 0")
        _check("batch.minibatches", self.minibatches, 1 <= self.minibatches <= self.full_batch, "be 1 to full_batch")
        _check("batch.epochs", self.epochs, self.epochs >= 1, "be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Adam, as Megatron runs it (`train/megatron/engine.py`)."""

    learning_rate: float = 2e-5  # constant (paper: 1e-5 personal, 1e-6 general; a small model needs more)
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_grad: float = 1.0  # gradients above this norm are scaled down to it
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: weights and activations; Adam keeps its own in fp32
    distributed: bool = False  # Adam's state split over the data-parallel ranks
    recompute_above_tokens: int = 1024  # longer sequences recompute activations: a third more time, far less memory

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"optimizer.learning_rate is {self.learning_rate}: must lie between 0 and 1, as 1e-5")
        for name in ("beta1", "beta2"):
            _check(f"optimizer.{name}", getattr(self, name), 0 <= getattr(self, name) < 1, "be 0 or more and below 1")
        _check("optimizer.eps", self.eps, 0 < self.eps < 1, "lie between 0 and 1")
        _check("optimizer.weight_decay", self.weight_decay, 0 <= self.weight_decay < 1, "be 0 or more and below 1")
        _check("optimizer.clip_grad", self.clip_grad, self.clip_grad > 0, "be above 0")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"optimizer.precision is {self.precision!r}: must be fp32 or bf16")


LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Which linears are adapted, and how: y = W·x + alpha/rank · B·A·x."""

    rank: int = 16
    alpha: float | None = None  # twice the rank, where nothing is said
    targets: tuple[str, ...] = LORA_TARGETS

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"train.lora.rank is {self.rank}: must be a whole number above 0, as 16")
        if self.alpha is None:
            object.__setattr__(self, "alpha", 2.0 * self.rank)
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"train.lora.alpha is {self.alpha}: must be a number above 0, as twice the rank")
        if isinstance(self.targets, str) or not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(
                f"train.lora.targets is {self.targets!r}: must be a list of different names of {LORA_TARGETS}"
            )
        if unknown := set(self.targets) - set(LORA_TARGETS):
            raise ValueError(f"train.lora.targets has {sorted(unknown)}: known are {', '.join(LORA_TARGETS)}")

    @property
    def scale(self) -> float:
        """What B·A·x is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """How many ranks share the work, and how (`train/megatron/ranks.py`)."""

    tensor: int = 1  # each layer's matrices are split
    pipeline: int = 1  # the layers are split
    data: int = 1  # the samples are split

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.data) < 1:
            raise ValueError(f"train.parallel: {self}: each must be at least 1")

    @property
    def world(self) -> int:
        """How many ranks that makes."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Bounds of the gate (`train/gate.py`). Against collapse: four good updates measured a KL of 0.0002 to 0.0013."""

    max_kl_start: float = 1.0  # nats per token, mean KL(new ‖ start) on the probes
    min_entropy: float = 0.25  # of the start's mean entropy
    max_entropy: float = 2.0  # of the start's mean entropy

    def __post_init__(self) -> None:
        for name in ("max_kl_start", "min_entropy", "max_entropy"):
            _check(f"gate.{name}", getattr(self, name), getattr(self, name) >= 0, "be a number, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The trainer's settings."""

    batch: BatchSettings = field(default_factory=BatchSettings)
    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    lora: LoraSettings | None = None  # train an adapter instead of all weights
    gate: GateSettings = field(default_factory=GateSettings)
    max_grad_norm: float = 300.0  # before clipping; above it the step is skipped (good steps measure 1 to 20)
    max_drift: float = 1.0  # nats, mean |ℓ_old - μ| over the batch's tokens; above it the step is skipped
    threads: int = 2  # of torch
    nice: int = 10  # of the trainer's thread: serving goes first
    keep_local: int = 3  # newest weight folders kept on this machine, beside the start weights
    collective_timeout_s: float = 600.0  # how long ranks wait for each other inside one step
    lease_ttl_s: float = 30.0
    lease_wait_s: float = 60.0  # how long a start waits for the lease of a trainer that died

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "max_drift", "lease_ttl_s", "collective_timeout_s"):
            _check(f"train.{name}", getattr(self, name), getattr(self, name) > 0, "be a number above 0")
        for name in ("threads", "keep_local"):
            _check(f"train.{name}", getattr(self, name), getattr(self, name) >= 1, "be at least 1")
        _check("train.nice", self.nice, 0 <= self.nice <= 19, "be 0 to 19")

    @staticmethod
    def environment() -> dict[str, str]:
        """What must stand in the environment before torch is imported.

        Between two operations a worker thread spins for some ten microseconds, then sleeps: with no spinning at all
        a step takes a quarter longer, with libgomp's own milliseconds of it the engine beside it gets less of the
        cores.
        """
        return {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
