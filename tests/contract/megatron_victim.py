"""A trainer that steps until it is killed. Run by test_megatron_crash: prints each phase as it begins."""

import json
import sys
from pathlib import Path

from storage.objects import ObjectStore
from storage.versions import VersionStore
from tests.contract.test_megatron_trainer import SETTINGS, batch
from train.trainer import Trainer


def main() -> None:
    """Step with batches that were not consumed yet."""
    where = json.loads(sys.argv[1])
    objects = ObjectStore(where.pop("url"), **where.pop("store"))
    versions = VersionStore(objects, "tiny")
    trainer = Trainer(
        SETTINGS, versions, objects, Path(where["local"]), Path(where["base"]),
        on_progress=lambda phase, done, total: print(phase, flush=True),
    )  # fmt: skip
    while True:
        for number in range(10_000):
            head = trainer.head()
            if f"{number}-0" not in versions.consumed(head):
                result = trainer.step(batch(number, version=head))
                assert result.outcome == "committed", result
                print("done", flush=True)


if __name__ == "__main__":
    main()
