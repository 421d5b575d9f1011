"""The engine's command line, its end, and what a start that fails says. The real server: tests/contract."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from serve.engine import Engine, EngineSettings
from serve.engine_client import EngineClient, EngineDown

ROOT = Path(__file__).parents[3]

# A server like ours: dies with its parent, and so does what it forks.
SERVER = """
import os, time
from serve.sglang_cpu import PARENT, die_with_forks, die_with_parent
die_with_parent(int(os.environ[PARENT]))
die_with_forks()
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
environ = {{**os.environ, "CLAWRL_ENGINE_PARENT": str(os.getpid())}}
subprocess.Popen([sys.executable, "-c", {SERVER!r}], env=environ, start_new_session=True)
time.sleep(60)
"""


def gone(pid: int, within_s: float = 10.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_killed_parent_takes_the_server_and_its_children_with_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server, child = map(int, parent.stdout.readline().split())
    assert psutil.pid_exists(server) and psutil.pid_exists(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(server) and gone(child)


def test_the_command_line_follows_the_settings() -> None:
    cpu = EngineSettings(extra_args=("--max-running-requests", "8")).command("/models/m", 7, 1234)
    words = " ".join(cpu)
    assert cpu[1:3] == ["-m", "serve.sglang_cpu"]
    for part in (
        "--device cpu", "--attention-backend torch_native", "--dtype float32", "--weight-version 7", "--port 1234",
        "--host 127.0.0.1", "--sleep-on-idle", "--incremental-streaming-output", "--max-running-requests 8",
    ):  # fmt: skip
        assert part in words
    gpu = " ".join(EngineSettings(device="cuda", tensor_parallel=2, max_total_tokens=None).command("/m", 0, 1))
    assert "torch_native" not in gpu and "--max-total-tokens" not in gpu and "--tp 2" in gpu


def test_the_environment_bounds_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = EngineSettings(threads=2).environment()
    assert found["OMP_NUM_THREADS"] == "2" and "PYTHONDONTWRITEBYTECODE" not in found


def test_a_server_whose_parent_is_gone_before_it_asks_leaves_at_once() -> None:
    lines = "from serve.sglang_cpu import die_with_parent; die_with_parent(1 << 22); print('still here')"
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""


async def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        await Engine(EngineSettings(log_dir=str(tmp_path))).start(tmp_path / "nothing", 0)


async def test_a_start_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    lines = "import sys; print('no such device'); sys.exit(3)"
    monkeypatch.setattr(EngineSettings, "command", lambda *_: [sys.executable, "-c", lines])
    engine = Engine(EngineSettings(log_dir=str(tmp_path / "logs")))
    with pytest.raises(EngineDown, match=r"code 3 while starting(?s:.)*no such device"):
        await engine.start(tmp_path, 0)
    assert not engine.alive and engine.pid is None
    await engine.close()


async def test_a_start_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(EngineSettings, "command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    engine = Engine(EngineSettings(log_dir=str(tmp_path / "logs"), start_timeout_s=0.5))
    with pytest.raises(EngineDown, match="not ready after"):
        await engine.start(tmp_path, 0)
    assert not engine.alive
    await engine.close()


async def test_nobody_there_is_engine_down() -> None:
    client = EngineClient("http://127.0.0.1:9")
    with pytest.raises(EngineDown):
        async for _ in client.generate_stream([1], {"max_new_tokens": 1}, "r"):
            pass
    assert not await client.health()
    await client.close()
