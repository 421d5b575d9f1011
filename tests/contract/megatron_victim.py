"""A trainer that steps until it is killed, for test_megatron_crash: waits for a line, then prints its phases."""

import json
import sys
from pathlib import Path

import train.update  # noqa: F401  imported before the line comes
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


def main() -> None:
    """Step with batches that were not consumed yet, for ever."""
    where = json.loads(sys.argv[1])
    sys.stdin.readline()
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


if __name__ == "__main__":
    main()
