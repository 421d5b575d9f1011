"""kill -9 in the middle of a step leaves the old head or the new one, wholly, and nothing is trained twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.objects import ObjectStore
from storage.records import new_id
from storage.versions import VersionStore
from tests.contract.conftest import S3
from tests.contract.test_megatron_trainer import SETTINGS, batch
from tests.unit.train.tiny import make_model
from train.settings import TrainSettings
from train.trainer import Trainer

KILL_AT = ("learn", "export", "upload", "commit", "done", "load")
ROOT = Path(__file__).resolve().parents[2]


def kill_at(where: dict, phase: str, skip: int, delay_s: float) -> None:
    """Start a trainer, and kill it a moment after it began a phase for the skip-th time."""
    command = [sys.executable, "-m", "tests.contract.megatron_victim", json.dumps(where)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as victim:
        for line in victim.stdout:
            if line.strip() == phase:
                skip -= 1
                if skip < 0:
                    break
        else:
            pytest.fail(f"the trainer ended by itself: {victim.stderr.read()[-2000:]}")
        time.sleep(delay_s)
        os.kill(victim.pid, signal.SIGKILL)


def check(versions: VersionStore, elsewhere: Path) -> int:
    """Every committed version is whole and descends from the one before; no sample is in two. The head's number."""
    numbers = [version.number for version in versions.versions()]
    if not numbers:
        return -1
    assert numbers == list(range(len(numbers)))
    seen: list[str] = []
    for version in versions.versions():
        assert version.parent == (version.number - 1 if version.number else None)
        seen += version.sample_ids
        versions.download(version.number, elsewhere / f"{version.number}-{new_id()}")  # raises if a hash differs
    assert len(seen) == len(set(seen))
    return numbers[-1]


def test_kill_9_leaves_one_head_wholly(s3: S3, tmp_path: Path) -> None:
    prefix = f"crash-{new_id().lower()}"
    objects: ObjectStore = s3.store(prefix)
    base, local = make_model(tmp_path / "base"), tmp_path / "weights"
    where = {
        "url": f"s3://{s3.bucket}/{prefix}", "local": str(local), "base": str(base),
        "store": {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key},
    }  # fmt: skip
    draw, before = random.Random(7), -1
    for phase in KILL_AT:
        kill_at(where, phase, skip=draw.randrange(3) if phase != "load" else 0, delay_s=draw.random() * 0.05)
        head = check(VersionStore(objects, "tiny"), tmp_path / "elsewhere")
        assert head >= before
        before = head
        time.sleep(SETTINGS.lease_ttl_s)  # the dead trainer's lease runs out
    settings = TrainSettings(nice=0, threads=1, max_drift=9.0, batch=SETTINGS.batch, lease_wait_s=10)
    trainer = Trainer(settings, VersionStore(objects, "tiny"), objects, local, base)
    try:
        assert trainer.head() == before and not list((local / "tiny").glob("*.part"))
        assert trainer.step(batch(20_000, version=before)).version.number == before + 1
    finally:
        trainer.close()
