"""One rank of the trainer: its engine and its gate, and the calls that a step is made of.

What it does: every call that changes or reads the model. All ranks of a group get the same calls with the same
arguments, in the same order, and return the same.
What it leaves out: versions, leases, the object store (`train/trainer.py`), starting ranks (`train/group.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from storage.records import Sample
from train.gate import Gate, GateReport, load_probes
from train.megatron.engine import Engine, Place, Saving
from train.settings import TrainSettings
from train.update import Learned, learn

Progress = Callable[[str, int, int], None]  # phase, done, total


class Worker:
    """`start` are the weights that the gate and β measure against; `base` those that train, or lie under an adapter."""

    def __init__(self, settings: TrainSettings, start: Path, base: Path, place: Place | None = None) -> None:
        """Raises ValueError as `Engine` does."""
        self.settings, self.start, self.base = settings, start, base
        self.engine = Engine(base, settings.optimizer, place, settings.lora)
        top, vocabulary = settings.loss.distill_top_k, self.engine.vocab_size
        if settings.loss.distill_weight > 0 and top > vocabulary:
            raise ValueError(f"loss.distill_top_k is {top}: the model's vocabulary has {vocabulary} tokens")
        with self.engine.borrow(start):
            self.gate = Gate(settings.gate, load_probes(start / "tokenizer.json"), self.engine.distributions)
        self._saving: Saving | None = None

    @property
    def name(self) -> str:
        """What makes the versions."""
        return self.engine.name

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        return self.engine.vocab_size

    def load(self, folder: Path, base: Path | None = None) -> None:
        """Take a folder's weights, or an adapter's and those of its base."""
        self.engine.load(folder, base)

    def load_state(self, folder: Path, identity: dict[str, str]) -> None:
        """Take an optimiser state; ValueError if it is torn or another's."""
        self.engine.load_state(folder, identity)

    def reset_state(self) -> None:
        """A fresh optimiser."""
        self.engine.reset_optimizer()

    def rest(self) -> None:
        """Give back the memory that only a step needs."""
        self.engine.rest()

    def learn(
        self, samples: Sequence[Sample], update_id: str, progress: Progress, learning_rate: float | None = None
    ) -> Learned:
        """All optimiser steps of one update. `Learned.steps` says how many were taken before a fault."""
        return learn(self.engine, samples, self.start, self.settings, update_id, progress, learning_rate)

    def check(self) -> GateReport:
        """Would these weights still talk sense?"""
        return self.gate.check(self.engine)

    def export(self, folder: Path) -> None:
        """Write the weights, or the adapter, as a folder."""
        self.engine.export(folder, self.base)

    # ---- saving, in three parts: the middle one may run in any thread ------------------------------------------

    def begin_save(self, folder: Path, identity: dict[str, str]) -> bool:
        """Plan a save of the optimiser's state into an empty folder; False if there is none yet."""
        self._saving = self.engine.begin_save(folder, identity)
        return self._saving is not None

    def write_save(self) -> None:
        """Write this rank's part; until then the optimiser must not step."""
        assert self._saving is not None
        self._saving.write()

    def finish_save(self) -> None:
        """Complete the folder. Raises OSError where a rank could not write."""
        assert self._saving is not None
        saving, self._saving = self._saving, None
        self.engine.finish_save(saving)
