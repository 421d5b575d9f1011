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
from tests.contract.megatron_victim import SETTINGS, batch
from tests.unit.train.tiny import make_model
from train.settings import TrainSettings
from train.trainer import Trainer

KILL_AT = ("load", "export", "upload", "upload", "commit", "commit", "done")
ROOT = Path(__file__).resolve().parents[2]


def kill_at(victims: subprocess.Popen[str], phase: str, skip: int, delay_s: float) -> None:
    """Start a trainer, and kill it a moment after it began a phase for the skip-th time."""
    victims.stdin.write("\n")
    victims.stdin.flush()
    pid = 0
    for line in victims.stdout:
        word, _, number = line.strip().partition(" ")
        assert word != "ended", "the trainer ended by itself: its error stands above"
        pid = int(number) if word == "pid" else pid
        skip -= word == phase
        if pid and skip < 0:
            break
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    assert any(line.strip() == "ended" for line in victims.stdout)


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


@pytest.mark.timeout(1800)
def test_kill_9_leaves_one_head_wholly(s3: S3, tmp_path: Path) -> None:
    prefix = f"crash-{new_id().lower()}"
    objects: ObjectStore = s3.store(prefix)
    base, local = make_model(tmp_path / "base"), tmp_path / "weights"
    where = {
        "url": f"s3://{s3.bucket}/{prefix}", "local": str(local), "base": str(base),
        "store": {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key},
    }  # fmt: skip
    draw, before = random.Random(7), -1
    command = [sys.executable, "-m", "tests.contract.megatron_victim", json.dumps(where)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as victims:
        for phase in KILL_AT:
            kill_at(victims, phase, skip=draw.randrange(3) if phase != "load" else 0, delay_s=draw.random() * 0.05)
            head = check(VersionStore(objects, "tiny"), tmp_path / "elsewhere")
            assert head >= before
            before = head
            time.sleep(SETTINGS.lease_ttl_s)  # the dead trainer's lease runs out
        victims.stdin.close()
    print(f"head {before} after {len(KILL_AT)} kills")
    settings = TrainSettings(nice=0, threads=1, max_drift=9.0, batch=SETTINGS.batch, lease_wait_s=10)
    trainer = Trainer(settings, VersionStore(objects, "tiny"), objects, local, base)
    try:
        assert trainer.head() == before and not list((local / "tiny").glob("*.part"))
        assert trainer.step(batch(20_000, version=before)).version.number == before + 1
    finally:
        trainer.close()
