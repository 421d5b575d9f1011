"""The trainer: takes samples, gives a new weight version, or says why there is none.

What it does: holds the model's lease; follows the head; per step: selects, learns, gates, exports, uploads, commits.
Nothing is changed for good before the manifest is written, so a crash leaves the old head or the new one, wholly.
With several ranks they are processes of their own; when one dies, all start again from the last commit.
What it leaves out: when to step and with what (`serve/live.py`, `flows/`), MLflow and aliases (the drivers). Importing
this module does not import torch: only making a Trainer does.

Run one by hand: see `python -m train.bench`.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from storage import dataset
from storage.objects import ObjectStore
from storage.records import Sample, Update, Version, new_id
from storage.versions import VersionStore
from train.group import Group, RankDied
from train.lease import LeaseKeeper
from train.megatron.folder import check
from train.megatron.layout import read_config
from train.settings import TrainSettings

if TYPE_CHECKING:
    from train.update import Learned
    from train.worker import Worker

log = logging.getLogger(__name__)

Outcome = Literal["committed", "nothing_to_learn", "skipped", "stale"]
Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What became of one step."""

    outcome: Outcome
    version: Version | None = None  # the new head, if committed
    update: Update | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # {sample_id: "name: sentence"}
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None  # a sentence, for every outcome but committed


def _silent(phase: str, done: int, total: int) -> None:
    pass


class Trainer:
    """The trainer of one model. Any thread may call it: it works in one thread of its own, one step at a time."""

    def __init__(
        self,
        settings: TrainSettings,
        versions: VersionStore,
        objects: ObjectStore,
        local_dir: Path,
        base_model_dir: Path,
        on_progress: Progress | None = None,
    ) -> None:
        """Take the lease and load the head; without any version the base weights become version 0."""
        self.settings, self.versions, self._objects = settings, versions, objects
        self._local_dir, self._base = Path(local_dir), Path(base_model_dir)
        self._progress = on_progress or _silent
        self._lease = LeaseKeeper(versions, settings.lease_ttl_s, settings.lease_wait_s)
        # torch's thread count and Linux's niceness belong to the thread that sets them, so does Megatron's CPU mode
        self._worker = ThreadPoolExecutor(1, "trainer", initializer=self._own_thread)
        self._loaded: int | None = None  # the version that engine and optimiser hold; None: neither can be trusted
        self._optimizer_from: int | None = None  # the version whose optimiser state the next update begins with
        try:
            self._worker.submit(self._start).result()
        except BaseException:  # named boundary: whatever failed, the lease is not kept
            self._lease.release()
            self._worker.shutdown()
            raise

    # ---- what a driver calls -----------------------------------------------------------------------------------

    def step(self, samples: Sequence[Sample], learning_rate: float | None = None) -> StepResult:
        """One update from these samples. Raises LeaseHeld, LeaseLost, CommitConflict, StoreDown, and RankDied if that
        happens twice: try again later."""
        if learning_rate is not None and not 0 < learning_rate < 1:
            raise ValueError(f"learning_rate is {learning_rate}: must lie between 0 and 1, as 1e-5")
        return self._worker.submit(self._step, list(samples), learning_rate).result()

    def head(self) -> int:
        """The version that the next step starts from."""
        head = self.versions.head()
        assert head is not None  # there is a version 0 since construction
        return head.number

    def close(self) -> None:
        """Let a running step and its save finish, then give the lease back."""
        self._worker.shutdown(wait=True)
        self._states.wait()
        if isinstance(self._ranks, Group):
            self._ranks.close()
        self._lease.release()

    # ---- start -------------------------------------------------------------------------------------------------

    def _own_thread(self) -> None:
        import torch

        torch.set_num_threads(self.settings.threads)
        if self.settings.nice:
            os.nice(self.settings.nice)  # on Linux of this thread and those it starts

    def _start(self) -> None:
        from train.checkpoints import OptimizerStates, WeightFolders

        self._folders = WeightFolders(self.versions, self._local_dir)
        self._states = OptimizerStates(self._objects, self.versions, self._local_dir)
        self._folders.tidy()
        head = self.versions.head() or self._commit_base()
        self._progress("load", 0, 1)
        self._start_folder = self._folders.fetch(self.versions.lineage(head.number)[-1])
        self._ranks = self._start_ranks()
        self._load(head.number)
        self._progress("load", 1, 1)

    def _start_ranks(self) -> "Worker | Group":
        """With an adapter the base is the newest version of the line that holds all weights."""
        base = self._start_folder
        if self.settings.lora is not None:
            base = self._folders.fetch(self.versions.base_of(self.head()))
        if self.settings.parallel.world > 1:
            return Group(self.settings, self._start_folder, base)
        from train.worker import Worker

        return Worker(self.settings, self._start_folder, base)

    def _commit_base(self) -> Version:
        """The base weights become version 0."""
        number = self.versions.next_number()
        if number:
            raise ValueError(f"{self.versions.model}: every version is withdrawn, there is no head to learn from")
        check(self._base, read_config(self._base))  # a version that exists can't be made again
        update_id = new_id()
        source, shards = self.versions.upload(0, update_id, self._folders.adopt(self._base))
        version = self._version(0, None, update_id, (source, shards), (), {}, None)
        self.versions.commit(version)
        self._folders.publish(0)
        return version

    def _load(self, head: int) -> None:
        """Weights and optimiser of the head."""
        self._loaded = None
        if self.settings.lora is None:
            folder, base = self._folders.whole(head), None
        else:
            folder, base = self._folders.fetch(head), self._folders.fetch(self.versions.base_of(head))
        self._ranks.load(folder, base)
        self._optimizer_from = self._states.load(self._ranks, head)
        if self._optimizer_from not in (None, head):
            self._ranks.load(folder, base)  # an older state may have brought the weights that it was saved with
        self._ranks.rest()
        self._loaded = head

    # ---- a step ------------------------------------------------------------------------------------------------

    def _step(self, samples: list[Sample], learning_rate: float | None) -> StepResult:
        try:
            return self._try_step(samples, learning_rate)
        except RankDied as fault:
            log.warning("%s: the ranks start again from the last commit", fault)
        self._ranks, self._loaded = self._start_ranks(), None
        return self._try_step(samples, learning_rate)

    def _try_step(self, samples: list[Sample], learning_rate: float | None) -> StepResult:
        started_at, update_id = time.time(), new_id()
        self._lease.hold()
        head = self.head()
        if head != self._loaded:  # rolled back, or the last step broke off
            log.info("the head is %s, loaded was %s", head, self._loaded)
            self._load(head)
        kept, left_out = self._select(samples, head)
        refusal = self._refusal(kept, left_out)
        if refusal:
            return refusal
        self._states.wait_written()  # the state of the step before is still being read
        try:
            learned = self._ranks.learn(kept, update_id, self._progress, learning_rate)
            self._ranks.rest()
            fault = learned.fault or self._gate(learned, learning_rate)
            if fault:
                if learned.steps:
                    self._load(head)
                return StepResult(outcome="skipped", left_out=left_out, metrics=learned.metrics, reason=fault)
            version = self._publish(head, update_id, kept, learned, started_at)
        except BaseException:  # named boundary: whatever failed, these weights are not the head's
            self._loaded = None
            raise
        self._loaded, self._optimizer_from = version.number, version.number
        self._states.save(self._ranks, version)
        self._folders.keep({0, *self.versions.lineage(version.number)[: self.settings.keep_local]})
        update = Update(
            update_id=update_id,
            model=self.versions.model,
            from_version=head,
            to_version=version.number,
            sample_ids=version.sample_ids,
            metrics=version.metrics,
            started_at=started_at,
            ended_at=time.time(),
        )
        return StepResult(
            outcome="committed", version=version, update=update, left_out=left_out, metrics=version.metrics
        )

    def _select(self, samples: list[Sample], head: int) -> tuple[list[Sample], dict[str, str]]:
        from train.batch import select

        return select(
            samples,
            head=head,
            lineage=self.versions.lineage(head),
            consumed=self.versions.consumed(head),
            vocab_size=self._ranks.vocab_size,
            settings=self.settings.batch,
            objective=self.settings.loss.objective,
        )

    def _refusal(self, kept: list[Sample], left_out: dict[str, str]) -> StepResult | None:
        """Why there is no step with these samples, or None."""
        least = self.settings.batch.min_samples
        if len(kept) >= least:
            return None
        consumed = sum(reason.startswith("consumed") for reason in left_out.values())
        if not kept and consumed and consumed == len(left_out):
            return StepResult(outcome="stale", left_out=left_out, reason=f"all {consumed} samples trained before")
        return StepResult(
            outcome="nothing_to_learn",
            left_out=left_out,
            reason=f"{len(kept)} samples can train, {least} are needed; {len(left_out)} were left out",
        )

    def _gate(self, learned: "Learned", learning_rate: float | None) -> str | None:
        """Why the new weights must not be committed, or None."""
        self._progress("gate", 0, 1)
        report = self._ranks.check()
        self._progress("gate", 1, 1)
        learned.metrics["learning_rate"] = learning_rate or self.settings.optimizer.learning_rate
        if report.measured:
            learned.metrics.update(kl_start=report.kl_start, entropy=report.entropy, entropy_start=report.entropy_start)
        return f"gate: {report.reason}" if report.reason else None

    def _publish(self, head: int, update_id: str, kept: list[Sample], learned: "Learned", started_at: float) -> Version:
        """Export, upload, scores, manifest: in this order. The version exists once the manifest is written."""
        number = self.versions.next_number()
        part = self._folders.part(number)
        self._progress("export", 0, 1)
        self._ranks.export(part)
        self._progress("upload", 0, 1)
        stored = self.versions.upload(number, update_id, part)
        for track in sorted({sample.track for sample in kept}):
            scores = [score for sample, score in zip(kept, learned.scores, strict=True) if sample.track == track]
            dataset.write("scores", scores, self._objects, name=update_id, track=track)
        learned.metrics["step_s"] = time.time() - started_at
        version = self._version(
            number, head, update_id, stored, tuple(sample.sample_id for sample in kept), learned.metrics,
            self._optimizer_from,
        )  # fmt: skip
        self._lease.confirm()
        self._progress("commit", 0, 1)
        self.versions.commit(version)
        self._folders.publish(number)
        self._progress("commit", 1, 1)
        return version

    def _version(
        self,
        number: int,
        parent: int | None,
        update_id: str,
        stored: tuple[str, tuple],
        sample_ids: tuple[str, ...],
        metrics: dict[str, Any],
        optimizer_from: int | None,
    ) -> Version:
        return Version(
            model=self.versions.model,
            number=number,
            parent=parent,
            update_id=update_id,
            source=stored[0],
            shards=stored[1],
            sample_ids=sample_ids,
            metrics=metrics,
            fence=self._lease.fence,
            optimizer_from=optimizer_from,
            created_at=time.time(),
            trainer=self._ranks.name if parent is not None else "",
        )
