"""The gate before a commit: would these weights still talk sense?

What it does: refuses weights that are not finite or zero all over, and, on fixed probes by teacher forcing, a mean KL
to the start weights or an entropy out of bounds. Runs in the trainer, in about a second, before anything is written.
What it leaves out: sampling (the probation after the swap watches real answers), scores on tasks.

Axes: R = continuation tokens of one probe, V = vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train.batch import Scored
from train.settings import GateSettings

PROBES = Path(__file__).with_name("probes.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What the gate found."""

    reason: str | None  # why it refuses; None if it passes
    measured: bool  # False where the weights were too broken to run
    kl_start: float  # nats per token
    entropy: float  # nats per token
    entropy_start: float  # nats per token

    @property
    def passed(self) -> bool:
        """Whether the weights may be committed."""
        return self.reason is None


class Model(Protocol):
    """What the gate asks of a model."""

    def weight_fault(self) -> str | None:
        """A weight that is not finite or zero all over, by name."""

    def distributions(self, sequence: Scored) -> Tensor:
        """[R, V] log-probs at each response position."""


def load_probes(tokenizer_file: Path, window: int = 256) -> list[Scored]:
    """The probes that ship with the package, in a model's own token ids."""
    if not tokenizer_file.exists():
        raise ValueError(f"{tokenizer_file} is missing: the gate's probes need the model's tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as fault:  # boundary: the library raises nothing narrower
        raise ValueError(f"{tokenizer_file} can't be read: {fault}") from fault

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return [
        Scored(
            prompt_ids=ids(probe["prompt"])[-window:], response_ids=ids(probe["continuation"])[:window], temperature=1.0
        )
        for probe in orjson.loads(PROBES.read_bytes())
    ]


class Gate:
    """Holds the start's distributions on the probes (some 40 MB for a vocabulary of 49,152)."""

    def __init__(self, settings: GateSettings, probes: Sequence[Scored], start: Callable[[Scored], Tensor]) -> None:
        """`start` gives the start weights' distributions."""
        assert probes
        self.settings = settings
        self._probes = probes
        self._start = [start(probe) for probe in probes]
        self._entropy_start = _mean_entropy(self._start)

    def check(self, model: Model) -> GateReport:
        """Measure a model against the start."""
        if fault := model.weight_fault():
            return GateReport(reason=fault, measured=False, kl_start=0.0, entropy=0.0, entropy_start=0.0)
        now = [model.distributions(probe) for probe in self._probes]
        kl, entropy = _mean_kl(now, self._start), _mean_entropy(now)
        return GateReport(
            reason=self._judge(kl, entropy),
            measured=math.isfinite(kl + entropy),
            kl_start=kl,
            entropy=entropy,
            entropy_start=self._entropy_start,
        )

    def _judge(self, kl: float, entropy: float) -> str | None:
        settings = self.settings
        low, high = settings.min_entropy * self._entropy_start, settings.max_entropy * self._entropy_start
        if not kl <= settings.max_kl_start:  # NaN does not pass
            return f"KL to the start is {kl:.3f} nats per token on the probes, max_kl_start is {settings.max_kl_start}"
        if not low <= entropy <= high:
            return f"entropy is {entropy:.3f} nats per token on the probes, allowed is {low:.3f} to {high:.3f}"
        return None


def _mean_kl(new: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """Mean over all positions of KL(new ‖ start)."""
    pairs = zip(new, start, strict=True)
    total = torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in pairs])
    return float(total.double().mean())


def _mean_entropy(distributions: Sequence[Tensor]) -> float:
    """Mean entropy over all positions."""
    return float(torch.cat([-(p.exp() * p).sum(-1) for p in distributions]).double().mean())
