"""Several ranks as one worker: a Ray actor each, on this machine, with the calls of `train/worker.py`.

What it does: starts the ranks, gives each call to all of them, passes their progress on, and notices within seconds
when one dies: then all are ended, for the others would wait for it for ever.
What it leaves out: what to do after a death (`train/trainer.py` starts a new group from the last commit), ranks on
several machines (they read and write the same folders).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from storage.records import Sample
from train.settings import ParallelSettings, TrainSettings

POLL_S = 0.3
START_S = 300.0
AGREE_S = 10.0  # how long the others may take to fail as the first one did
Progress = Callable[[str, int, int], None]


class RankDied(Exception):
    """A rank ended in the middle of the work. Nothing was committed; start a new group."""


@ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"model": 1, "disk": 1, "word": 1})
class RankActor:
    """One rank. The model is used in one thread; another writes its state; a third tells how far things are."""

    def __init__(self, nice: int) -> None:
        self._phase: tuple[str, int, int] | None = None
        self._nice = nice
        self._threads: set[int] = set()

    @ray.method(concurrency_group="model")
    def build(self, settings: TrainSettings, start: Path, base: Path, rank: int, store: Path) -> tuple[str, int]:
        """Join the group and load the model: its name and vocabulary."""
        import torch.distributed as dist

        self._own_thread(settings.threads)
        from train.megatron.engine import Place
        from train.worker import Worker

        files = dist.FileStore(str(store), settings.parallel.world)  # no port is opened for it
        place = Place(rank=rank, layout=settings.parallel, store=files, timeout_s=settings.collective_timeout_s)
        self._worker = Worker(settings, start, base, place)
        return self._worker.name, self._worker.vocab_size

    @ray.method(concurrency_group="model")
    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the worker; `learn` without its progress, which is kept for `phase`."""
        if method == "learn":
            samples, update_id, learning_rate = arguments
            return self._worker.learn(samples, update_id, self._note, learning_rate)
        return getattr(self._worker, method)(*arguments)

    @ray.method(concurrency_group="disk")
    def write_save(self) -> None:
        """As `Worker.write_save`, beside the model's thread."""
        self._own_thread(1)
        self._worker.write_save()

    @ray.method(concurrency_group="word")
    def phase(self) -> tuple[str, int, int] | None:
        """The last word on a running `learn`."""
        return self._phase

    @ray.method(concurrency_group="word")
    def pid(self) -> int:
        """Which process it is."""
        return os.getpid()

    def _own_thread(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # of the thread that sets it
        if self._nice and threading.get_ident() not in self._threads:
            self._threads.add(threading.get_ident())
            os.nice(self._nice)

    def _note(self, phase: str, done: int, total: int) -> None:
        self._phase = (phase, done, total)


class Group:
    """A worker that is several ranks. Any thread may call it; calls are given to all ranks in one order."""

    def __init__(self, settings: TrainSettings, start: Path, base: Path) -> None:
        """Start the ranks. Raises ValueError where the model, its weights or the layout does not fit, and RankDied."""
        from train.megatron.layout import check_layout, read_config

        check_layout(read_config(base), settings.parallel)
        self._folder = Path(tempfile.mkdtemp(prefix="clawrl-ranks-"))
        self._lock = threading.Lock()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {
            "scheduling_strategy": here,
            "num_gpus": _gpus(settings.parallel),
            "runtime_env": {"env_vars": settings.environment()},
        }
        self._ranks = [RankActor.options(**options).remote(settings.nice) for _ in range(settings.parallel.world)]
        try:
            self.pids = self._all([rank.pid.remote() for rank in self._ranks], START_S)
            store = self._folder / "store"
            built = [rank.build.remote(settings, start, base, at, store) for at, rank in enumerate(self._ranks)]
            self.name, self.vocab_size = self._all(built, START_S)[0]
        except BaseException:  # named boundary: no rank is left behind
            self.close()
            raise

    def load(self, folder: Path, base: Path | None = None) -> None:
        """As `Worker.load`."""
        self._call("load", folder, base)

    def load_state(self, folder: Path, identity: dict[str, str]) -> None:
        """As `Worker.load_state`."""
        self._call("load_state", folder, identity)

    def reset_state(self) -> None:
        """As `Worker.reset_state`."""
        self._call("reset_state")

    def rest(self) -> None:
        """As `Worker.rest`."""
        self._call("rest")

    def learn(
        self, samples: Sequence[Sample], update_id: str, progress: Progress, learning_rate: float | None = None
    ) -> Any:
        """As `Worker.learn`."""
        stored = ray.put(list(samples))
        return self._call("learn", stored, update_id, learning_rate, progress=progress)

    def check(self) -> Any:
        """As `Worker.check`."""
        return self._call("check")

    def export(self, folder: Path) -> None:
        """As `Worker.export`."""
        self._call("export", folder)

    def begin_save(self, folder: Path, identity: dict[str, str]) -> bool:
        """As `Worker.begin_save`."""
        return self._call("begin_save", folder, identity)

    def write_save(self) -> None:
        """As `Worker.write_save`: all ranks at once, beside their models' threads."""
        self._all([rank.write_save.remote() for rank in self._ranks])

    def finish_save(self) -> None:
        """As `Worker.finish_save`."""
        self._call("finish_save")

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            ray.kill(rank)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, method: str, *arguments: Any, progress: Progress | None = None) -> Any:
        with self._lock:  # two threads' calls must reach each rank in the same order: they wait for each other inside
            calls = [rank.call.remote(method, *arguments) for rank in self._ranks]
        return self._all(calls, progress=progress)[0]

    def _all(self, calls: list[ray.ObjectRef], timeout_s: float = inf, progress: Progress | None = None) -> list[Any]:
        """Every rank's answer. Where all refuse alike, their reason is raised; else one failed alone, the others may
        wait for it for ever, and the group is ended."""
        pending, faults, last = list(calls), [], None
        until = time.monotonic() + timeout_s
        while pending and time.monotonic() < until:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=POLL_S)
            faults += [fault for fault in map(_fault, done) if fault]
            if any(isinstance(fault, RayActorError) for fault in faults):
                break
            if faults:
                until = min(until, time.monotonic() + AGREE_S)
            elif progress and pending:
                last = self._pass_on(progress, last)
        if not faults and not pending:
            return ray.get(calls)
        if len(faults) == len(calls) and all(isinstance(fault, ValueError | OSError) for fault in faults):
            raise faults[0]
        self.close()
        raise RankDied(f"{len(faults)} of {len(calls)} ranks failed, as: {faults[0]}" if faults else
                       f"{len(pending)} of {len(calls)} ranks gave no answer within {timeout_s:.0f} s")  # fmt: skip

    def _pass_on(self, progress: Progress, last: Any) -> Any:
        phases = []
        with contextlib.suppress(RayActorError, ray.exceptions.GetTimeoutError):  # the next look will say it
            phases = ray.get([rank.phase.remote() for rank in self._ranks], timeout=POLL_S)
        phases = [phase for phase in phases if phase]
        if phases and phases[-1] != last:
            last = phases[-1]  # of the last rank: it is in the last pipeline stage
            progress(*last)
        return last


def _fault(call: ray.ObjectRef) -> Exception | None:
    """What went wrong in a call that has ended, or None."""
    try:
        ray.get(call)
    except RayTaskError as fault:
        return fault.cause if isinstance(fault.cause, Exception) else fault
    except RayActorError as fault:
        return fault
    return None


def _gpus(layout: ParallelSettings) -> float:
    """One each, where the cluster has them."""
    return 1.0 if ray.cluster_resources().get("GPU", 0) >= layout.world else 0.0
