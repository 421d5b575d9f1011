"""What a killed process leaves is removed by the next one, and nothing else is."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serve.environments import scratch as module
from serve.environments.scratch import began, scratch

HOLDS = """
import time
from serve.environments.scratch import scratch

with scratch("test") as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_it_is_gone_afterwards() -> None:
    with scratch("test") as folder:
        (folder / "a").write_text("x")
        assert folder.name.startswith(f"clawrl-test-{os.getpid()}-{began(os.getpid())}-")
    assert not folder.exists()


def test_what_a_killed_process_left_is_swept_and_what_lives_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-c", HOLDS]
    holders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) for _ in "ab"]
    try:
        killed, living = (Path(holder.stdout.readline().strip()) for holder in holders)
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        (tmp_path / "clawrl-test-notes").mkdir()
        module._sweep.cache_clear()
        with scratch("test"):
            assert not killed.exists() and living.exists() and (tmp_path / "clawrl-test-notes").exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
