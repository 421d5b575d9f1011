"""Trainers that step until they are killed, for test_megatron_crash.

For each line on its input it forks a trainer (the imports are paid once, and no thread runs before the fork) and prints
"pid N"; the child prints each phase as it begins, and "ended" follows when it is gone.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import train.update  # noqa: F401  imported here so that the children need not
from storage.objects import ObjectStore
from storage.records import Sample, VersionSpan
from storage.versions import VersionStore
from tests.unit.train.tiny import make_sample
from train.settings import BatchSettings, OptimizerSettings, TrainSettings
from train.trainer import Trainer

SETTINGS = TrainSettings(
    nice=0, threads=1, max_drift=9.0, lease_ttl_s=3.0, lease_wait_s=0.0, batch=BatchSettings(full_batch=4),
    optimizer=OptimizerSettings(learning_rate=1e-4),
)  # fmt: skip


def batch(number: int, version: int = 0) -> list[Sample]:
    """Eight fresh samples."""
    made = [make_sample(100 * number + seed) for seed in range(8)]
    return [
        make_sample(
            100 * number + seed,
            sample_id=f"{number}-{seed}",
            versions=(VersionSpan(version=version, start=0, end=len(sample.rollout_logprobs)),),
        )
        for seed, sample in enumerate(made)
    ]


def step_on(where: dict) -> None:
    """Step with batches that were not consumed yet, for ever."""
    objects = ObjectStore(where["url"], **where["store"])
    versions = VersionStore(objects, "tiny")
    trainer = Trainer(
        SETTINGS, versions, objects, Path(where["local"]), Path(where["base"]),
        on_progress=lambda phase, done, total: print(phase, flush=True),
    )  # fmt: skip
    for number in range(10_000):
        head = trainer.head()
        if f"{number}-0" not in versions.consumed(head):
            result = trainer.step(batch(number, version=head))
            assert result.outcome == "committed", result
            print("done", flush=True)


def main() -> None:
    """One child for each line."""
    where = json.loads(sys.argv[1])
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                step_on(where)
            except BaseException:  # named boundary: a forked child must not run into its parent's loop
                traceback.print_exc()
            os._exit(1)
        print(f"pid {child}", flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
