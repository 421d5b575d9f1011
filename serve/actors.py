"""The learner and the trainer as Ray actors: detached, named, restarted by Ray when they die.

What it leaves out: what they do (`serve/live.py`, `train/trainer.py`). Both rebuild their state from the journal and
the committed versions, so a restart needs no hand-over.
"""

import asyncio
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from judge import JudgeInput
from serve.lineage import Lineage
from serve.live import Learner, LiveSettings
from storage.objects import StoreSettings
from storage.records import Sample, Verdict
from storage.registry import Registry
from storage.versions import VersionStore
from train.settings import TrainSettings
from train.trainer import StepResult, Trainer

NAMESPACE = "clawrl"
LEARNER, TRAINER = "learner", "trainer"


@dataclass(frozen=True, kw_only=True)
class TrainerPlace:
    """Where the trainer finds its model and keeps its copies."""

    model: str
    model_dir: Path
    local_dir: Path
    store: StoreSettings


def _log_to(folder: Path | None, name: str) -> None:
    if folder is not None:
        form = "%(asctime)s %(levelname)s %(name)s %(message)s"
        logging.basicConfig(filename=folder / f"{name}.log", level=logging.INFO, format=form, force=True)
        logging.getLogger("botocore").setLevel(logging.WARNING)


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=4)
class TrainerActor:
    """One step at a time; `status` answers in between."""

    def __init__(self, settings: TrainSettings, place: TrainerPlace, log_dir: Path | None = None) -> None:
        _log_to(log_dir, TRAINER)
        objects = place.store.open()
        self._lock = threading.Lock()
        self._phase: dict[str, Any] = {"phase": "loading"}
        self._trainer = Trainer(
            settings, VersionStore(objects, place.model), objects, place.local_dir, place.model_dir,
            on_progress=self._progress,
        )  # fmt: skip
        self._phase = {"phase": "idle"}

    def step(self, samples: list[Sample]) -> StepResult:
        """One update from these samples, or the reason why there is none."""
        with self._lock:
            try:
                return self._trainer.step(samples)
            finally:
                self._phase = {"phase": "idle"}

    def status(self) -> dict[str, Any]:
        """What it is doing."""
        return {**self._phase, "pid": os.getpid()}

    def close(self) -> None:
        """Let a running step and its save finish, then give the lease back."""
        with self._lock:
            self._trainer.close()

    def _progress(self, phase: str, done: int, total: int) -> None:
        self._phase = {"phase": phase, "done": done, "total": total}


class RayParts:
    """The learner's way to judge, trainer and policy."""

    def __init__(self) -> None:
        self._judge = serve.get_app_handle("judge")
        self._policy = serve.get_deployment_handle("Policy", "policy")

    async def judge(self, item: JudgeInput) -> Verdict:
        return await self._judge.judge.remote(item)

    async def step(self, samples: list[Sample]) -> StepResult:
        return await ray.get_actor(TRAINER, NAMESPACE).step.remote(samples)

    async def poke(self) -> None:
        await self._policy.poke.remote()

    def failures(self) -> tuple[type[BaseException], ...]:
        return (ray.exceptions.RayError, RayServeException, TimeoutError, OSError)


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=4)
class LearnerActor:
    """Runs the learner's loops in a thread of their own from the moment it exists, restarts included."""

    def __init__(self, settings: LiveSettings, log_dir: Path | None = None) -> None:
        _log_to(log_dir, LEARNER)
        objects = settings.store.open()
        versions = VersionStore(objects, settings.model)
        lineage = Lineage(
            objects, versions, Registry(settings.tracking_uri, settings.model), keep_last=settings.keep_last
        )
        self._learner = Learner(settings, RayParts(), lineage)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._learner.run())

    def status(self) -> dict[str, Any]:
        """The learner's state, as plain data."""
        return {**self._learner.status(), "pid": os.getpid(), "running": self._thread.is_alive()}

    def stop(self) -> None:
        """End the loops and flush the journal."""
        self._loop.call_soon_threadsafe(self._learner.stop)
        self._thread.join(timeout=30)
